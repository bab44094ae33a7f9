#include "text/regex_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

// What Oniguruma counts as part of a word: as Unicode's annex 18, without the joiners.
constexpr std::string_view kWordClass =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
// And these, but not where \w stands between brackets.
constexpr std::string_view kLatinNumbers = R"(\xB2\xB3\xB9\xBC-\xBE)";
constexpr std::string_view kSpaceClass = R"(\t-\r \x{85}\p{Z})";

// The members of the class, as written between brackets; "": the escape means the same in PCRE2.
std::string members(char escape, bool in_brackets) {
  if (escape == 'w' || escape == 'W') return std::string(kWordClass) + std::string(in_brackets ? "" : kLatinNumbers);
  if (escape == 'h' || escape == 'H') return "0-9a-fA-F";
  return "";
}

// What POSIX's names stand for, as written between brackets: [[:name:]] and \p{Name}. PCRE2's are those of ASCII, with
// a few additions. "": no such name.
std::string_view posix_members(std::string_view name) {
  constexpr std::array<Pair, 13> kClasses{{{"alpha", R"(\p{Alphabetic})"},
                                           {"digit", R"(\p{Nd})"},
                                           {"upper", R"(\p{Uppercase})"},
                                           {"lower", R"(\p{Lowercase})"},
                                           {"alnum", R"(\p{Alphabetic}\p{Nd})"},
                                           {"punct", R"(\p{P}\p{S})"},
                                           {"space", kSpaceClass},
                                           {"blank", R"(\t\p{Zs})"},
                                           {"cntrl", R"(\p{Cc})"},
                                           {"graph", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co})"},
                                           {"print", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co}\p{Zs})"},
                                           {"xdigit", "0-9a-fA-F"},
                                           {"word", kWordClass}}};
  const auto it = std::find_if(kClasses.begin(), kClasses.end(), [&](const Pair& p) { return p.first == name; });
  return it == kClasses.end() ? std::string_view() : it->second;
}

// Long names that PCRE2 does not have, or has for ASCII alone.
std::string_view general_category(std::string_view name) {
  constexpr std::array<Pair, 41> kNames{{{"letter", "L"},
                                         {"casedletter", "L&"},
                                         {"uppercaseletter", "Lu"},
                                         {"lowercaseletter", "Ll"},
                                         {"titlecaseletter", "Lt"},
                                         {"modifierletter", "Lm"},
                                         {"otherletter", "Lo"},
                                         {"mark", "M"},
                                         {"combiningmark", "M"},
                                         {"nonspacingmark", "Mn"},
                                         {"spacingmark", "Mc"},
                                         {"enclosingmark", "Me"},
                                         {"number", "N"},
                                         {"decimalnumber", "Nd"},
                                         {"digit", "Nd"},
                                         {"letternumber", "Nl"},
                                         {"othernumber", "No"},
                                         {"punctuation", "P"},
                                         {"punct", "P"},  // [:punct:] has symbols, too
                                         {"connectorpunctuation", "Pc"},
                                         {"dashpunctuation", "Pd"},
                                         {"openpunctuation", "Ps"},
                                         {"closepunctuation", "Pe"},
                                         {"initialpunctuation", "Pi"},
                                         {"finalpunctuation", "Pf"},
                                         {"otherpunctuation", "Po"},
                                         {"symbol", "S"},
                                         {"mathsymbol", "Sm"},
                                         {"currencysymbol", "Sc"},
                                         {"modifiersymbol", "Sk"},
                                         {"othersymbol", "So"},
                                         {"separator", "Z"},
                                         {"spaceseparator", "Zs"},
                                         {"lineseparator", "Zl"},
                                         {"paragraphseparator", "Zp"},
                                         {"other", "C"},
                                         {"control", "Cc"},
                                         {"format", "Cf"},
                                         {"surrogate", "Cs"},
                                         {"privateuse", "Co"},
                                         {"unassigned", "Cn"}}};
  const auto it = std::find_if(kNames.begin(), kNames.end(), [&](const Pair& p) { return p.first == name; });
  return it == kNames.end() ? std::string_view() : it->second;
}

// Scripts that expressions of tokenizers name: PCRE2 takes a bare name for the script's extensions, too.
bool is_script(std::string_view name) {
  constexpr std::array<std::string_view, 30> kScripts{
      "arabic",    "armenian", "bengali",  "bopomofo", "common", "cyrillic", "devanagari", "ethiopic",
      "georgian",  "greek",    "gujarati", "gurmukhi", "han",    "hangul",   "hebrew",     "hiragana",
      "inherited", "kannada",  "katakana", "khmer",    "lao",    "latin",    "malayalam",  "mongolian",
      "myanmar",   "sinhala",  "tamil",    "telugu",   "thai",   "tibetan"};
  return std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end();
}

// Letters that one code point stands for when case does not matter, and what then matches them.
struct Ligature {
  std::string_view letters;
  std::u32string_view signs;
  std::string_view matches;
};
constexpr std::array<Ligature, 7> kLigatures{{{"ffi", U"\uFB03", R"((?:ffi|\x{FB03}|\x{FB00}i|f\x{FB01}))"},
                                              {"ffl", U"\uFB04", R"((?:ffl|\x{FB04}|\x{FB00}l|f\x{FB02}))"},
                                              {"ff", U"\uFB00", R"((?:ff|\x{FB00}))"},
                                              {"fi", U"\uFB01", R"((?:fi|\x{FB01}))"},
                                              {"fl", U"\uFB02", R"((?:fl|\x{FB02}))"},
                                              {"ss", U"\u00DF\u1E9E", R"((?:ss|[\xDF\x{1E9E}]))"},
                                              {"st", U"\uFB05\uFB06", R"((?:st|[\x{FB05}\x{FB06}]))"}}};

class Rewriter {
 public:
  explicit Rewriter(const std::string& pattern) : in_(pattern) {}

  PcrePattern run() {
    while (at_ < in_.size()) {
      const auto begin = out_.size();
      if (in_[at_] == '(') {
        open_group();
        continue;
      }
      if (in_[at_] == ')' && groups_.size() > 1) {
        close_group();
        continue;
      }
      if (in_[at_] == '{' && interval()) continue;
      if (in_[at_] == '*' || in_[at_] == '+' || in_[at_] == '?') {
        out_ += in_[at_++];
        continue;
      }
      if (in_[at_] == '[') {
        out_ += bracket();
      } else if (in_[at_] == '\\') {
        out_ += escape(false).text;
      } else if (const auto* ligature = groups_.back().ignore_case ? find_ligature() : nullptr) {
        out_ += ligature->matches;
      } else {
        const auto sign = literal();
        name(sign.code_point, sign.code_point);
        out_ += sign.text;
      }
      repeatable_ = begin;
    }
    out_.append(groups_.back().options, ')');
    return {out_, std::move(named_)};
  }

 private:
  static constexpr char32_t kNone = 0xFFFFFFFF;

  // A part of a class: text for between brackets, or (`whole`) an expression that matches one character.
  struct Item {
    std::string text;
    bool whole = false;
    char32_t code_point = kNone;  // that the text stands for, if it is one alone
  };

  struct Group {
    std::size_t begin = 0;  // in out_
    bool ignore_case = false;
    std::size_t options = 0;  // how many (?i) stand in it: each is a group that ends with it
  };

  void name(char32_t first, char32_t last) {
    if (last >= 0x80 && last != kNone) named_.emplace_back(first, last);
  }

  Item literal() {
    std::string_view rest = std::string_view(in_).substr(at_);
    const auto before = rest.size();
    const auto c = next_code_point(rest);
    const auto length = before - rest.size();
    at_ += length;
    return {in_.substr(at_ - length, length), false, c};
  }

  // An opening parenthesis, with the options that stand behind it: (?i: for the group, (?i) for the rest of the group
  // around it, alternatives included. Ruby's m is PCRE2's s.
  void open_group() {
    const auto begin = at_++;
    bool ignore = groups_.back().ignore_case;
    auto end = in_.compare(at_, 1, "?") == 0 ? in_.find_first_not_of("imx-", at_ + 1) : std::string::npos;
    if (end == std::string::npos || (in_[end] != ':' && in_[end] != ')')) end = begin;
    for (auto i = begin, on = std::size_t{1}; i < end; ++i) {
      if (in_[i] == '-') on = 0;
      if (in_[i] == 'i') ignore = on != 0;
    }
    if (end > begin && in_[end] == ')')
      groups_.back() = {groups_.back().begin, ignore, groups_.back().options + 1};
    else
      groups_.push_back({out_.size(), ignore});
    std::string options = in_.substr(begin, std::max<std::size_t>(end - begin, 1));
    std::replace(options.begin(), options.end(), 'm', 's');
    out_ += options;
    if (end > begin) {
      out_ += ':';
      at_ = end + 1;
    }
    repeatable_ = out_.size();
  }

  void close_group() {
    out_.append(groups_.back().options + 1, ')');
    repeatable_ = groups_.back().begin;
    groups_.pop_back();
    ++at_;
  }

  // A number of times, of which the lower may be left out. Behind it `+` repeats the whole again, and so does `?`
  // behind a single number; in PCRE2 they say how it matches. False: a brace that stands for itself.
  bool interval() {
    const auto digits = [&](std::size_t from) {
      return std::min(in_.find_first_not_of("0123456789", from), in_.size());
    };
    const auto low = digits(at_ + 1);
    const bool is_range = in_.compare(low, 1, ",") == 0;
    const auto high = is_range ? digits(low + 1) : low;
    if (in_.compare(high, 1, "}") != 0 || high - at_ < (is_range ? 3U : 2U)) return false;
    const bool again = in_.compare(high + 1, 1, "+") == 0 || (!is_range && in_.compare(high + 1, 1, "?") == 0);
    if (again) out_.insert(repeatable_, "(?:");
    out_ += (low == at_ + 1 ? "{0" : "{") + in_.substr(at_ + 1, high - at_) + (again ? ")" : "");
    at_ = high + 1;
    return true;
  }

  // At letters that one sign stands for, or at the sign: goes behind them. A quantifier takes the last letter alone.
  const Ligature* find_ligature() {
    const auto is_quantified = [&](std::size_t end) {
      return end < in_.size() && std::string_view("*+?{").find(in_[end]) != std::string_view::npos;
    };
    const auto equal = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
    for (const auto& ligature : kLigatures) {
      const auto written = std::string_view(in_).substr(at_, ligature.letters.size());
      if (std::equal(written.begin(), written.end(), ligature.letters.begin(), ligature.letters.end(), equal) &&
          !is_quantified(at_ + written.size())) {
        at_ += written.size();
        return &ligature;
      }
    }
    const auto begin = at_;
    const auto sign = literal().code_point;
    for (const auto& ligature : kLigatures)
      if (ligature.signs.find(sign) != std::u32string_view::npos) return &ligature;
    at_ = begin;
    return nullptr;
  }

  static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

  // A letter that a backslash changes nothing about; PCRE2 gives some of these a meaning (\Q), or refuses them.
  static bool is_plain_letter(char c, bool in_brackets) {
    return std::string_view(in_brackets ? "ABEFGIJKLNOQRTUVXYZgijklmqyz" : "EFIJLQTUVijlmq").find(c) !=
           std::string_view::npos;
  }

  // \C-a is \x01.
  Item control() {
    if (in_.compare(at_, 1, "-") != 0 || at_ + 1 >= in_.size() ||
        !std::isalpha(static_cast<unsigned char>(in_[at_ + 1])))
      throw DataError("a regular expression with \\C and no letter behind it, as \\C-a has");
    at_ += 2;
    return numbered(static_cast<char32_t>(in_[at_ - 1] & 0x1F));
  }

  // \xE3\x81\x82, at the first number: the bytes of one sign in UTF-8.
  Item sign_of_bytes() {
    std::string bytes;
    do {
      if (!bytes.empty()) at_ += 2;
      bytes += static_cast<char>(hex(at_, 2));
      at_ += 2;
      std::string_view left = bytes;
      const auto c = next_code_point(left);
      if (left.empty() && (c != 0xFFFD || bytes == "\xEF\xBF\xBD")) return numbered(c);
    } while (bytes.size() < 4 && in_.compare(at_, 2, "\\x") == 0 && is_hex(at_ + 2, 2));
    throw DataError(
        "a regular expression with \\x80 to \\xFF, which are bytes of UTF-8, and not all those of one character; write "
        "\\x{E9}");
  }

  // At a backslash. Between brackets a class that is a complement cannot be listed, and becomes an expression.
  Item escape(bool in_brackets) {
    if (++at_ == in_.size()) return {"\\"};
    const char c = in_[at_++];
    if (c == 'p' || c == 'P') return property(c, in_brackets);
    if (c == 'u' && is_hex(at_, 4)) {
      at_ += 4;
      return numbered(hex(at_ - 4, 4));
    }
    if (c == 'x' && at_ < in_.size() && in_[at_] == '{') {
      const auto end = in_.find('}', at_);
      if (end != std::string::npos && end > at_ + 1 && end < at_ + 8 && is_hex(at_ + 1, end - at_ - 1)) {
        const auto number = hex(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return numbered(number);
      }
    }
    if ((c == 'b' || c == 'B') && !in_brackets) {  // where \w, as it is rewritten, begins or ends
      const std::string word = "[" + members('w', false) + "]";
      const char* form = c == 'b' ? "(?:(?<={0})(?!{0})|(?<!{0})(?={0}))" : "(?:(?<={0})(?={0})|(?<!{0})(?!{0}))";
      return {fmt::format(fmt::runtime(form), word)};
    }
    if (c == 'v') return {R"(\x0B)", false, U'\v'};  // the one sign
    const std::string inner = members(c, in_brackets);
    if (!inner.empty()) return class_of(inner, is_upper(c), in_brackets);
    if (is_plain_letter(c, in_brackets)) return {std::string(1, c), false, static_cast<char32_t>(c)};
    if (c == 'C') return control();
    if (c == 'x' && is_hex(at_, 2) && in_[at_] >= '8') return sign_of_bytes();
    return {std::string("\\") + c + rest_of_escape(c)};
  }

  // \cA, \x41 and \101 are one sign.
  std::string rest_of_escape(char c) {
    const std::string_view signs = c == 'x' ? "0123456789abcdefABCDEF" : c >= '0' && c <= '9' ? "0123456789" : "";
    const auto two = std::string_view(in_).substr(at_, c == 'c' ? 1 : 2);
    const auto rest = c == 'c' ? two : two.substr(0, two.find_first_not_of(signs));
    at_ += rest.size();
    return std::string(rest);
  }

  Item numbered(char32_t c) {
    name(c, c);
    return {fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(c)), false, c};
  }

  bool is_hex(std::size_t at, std::size_t count) const {
    if (at + count > in_.size()) return false;
    return std::all_of(in_.begin() + static_cast<std::ptrdiff_t>(at),
                       in_.begin() + static_cast<std::ptrdiff_t>(at + count),
                       [](unsigned char c) { return std::isxdigit(c) != 0; });
  }

  char32_t hex(std::size_t at, std::size_t count) const {
    return static_cast<char32_t>(std::stoul(in_.substr(at, count), nullptr, 16));
  }

  // \p and \P without a brace are letters.
  Item property(char escape, bool in_brackets) {
    const auto end = in_.find('}', at_);
    if (at_ >= in_.size() || in_[at_] != '{' || end == std::string::npos)
      return {std::string(1, escape), false, static_cast<char32_t>(escape)};
    const std::string written = in_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    const bool negated = written.starts_with('^');
    std::string name;
    for (const char c : written.substr(negated ? 1 : 0))
      if (c != '_' && c != ' ' && c != '-') name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (in_brackets) refuse_one_case(name);
    std::string known = written.substr(negated ? 1 : 0);
    if (const auto category = general_category(name); !category.empty())
      known = category;
    else if (is_script(name))
      known = "sc:" + name;
    else if (name == "word")
      return class_of(members('w', in_brackets), negated != (escape == 'P'), in_brackets);
    else if (const auto listed = posix_members(name); !listed.empty())
      return class_of(listed, negated != (escape == 'P'), in_brackets);
    return {std::string("\\") + escape + (negated ? "{^" : "{") + known + "}"};
  }

  // Between brackets Oniguruma then takes what is the other case of a member for one. PCRE2 does not.
  void refuse_one_case(std::string_view name) const {
    constexpr std::array<std::string_view, 10> kNames{"lu", "uppercaseletter", "upper", "uppercase", "lt",
                                                      "ll", "lowercaseletter", "lower", "lowercase", "titlecaseletter"};
    if (groups_.back().ignore_case && std::find(kNames.begin(), kNames.end(), name) != kNames.end())
      throw DataError(fmt::format(
          "a regular expression with (?i) and letters of one case in brackets ({}), which is not built", name));
  }

  // Characters that are listed, or their complement, which cannot be listed between brackets.
  static Item class_of(std::string_view listed, bool negated, bool in_brackets) {
    if (negated) return {fmt::format("[^{}]", listed), true};
    return {in_brackets ? std::string(listed) : fmt::format("[{}]", listed)};
  }

  // [[:name:]], at the inner bracket; nothing where it is none.
  std::optional<Item> posix() {
    const auto end = in_.find(":]", at_ + 2);
    if (in_.compare(at_, 2, "[:") != 0 || end == std::string::npos || end - at_ > 12) return std::nullopt;
    std::string_view name = std::string_view(in_).substr(at_ + 2, end - at_ - 2);
    const std::string whole = in_.substr(at_, end + 2 - at_);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::islower(c); }))
      return std::nullopt;
    at_ = end + 2;
    refuse_one_case(name);
    const auto listed = posix_members(name);
    return listed.empty() ? Item{whole} : class_of(listed, negated, true);
  }

  // A class, at its opening bracket, with nested ones and intersections.
  std::string bracket(int depth = 0) {
    constexpr int kMaxDepth = 100;
    if (depth == kMaxDepth)
      throw DataError(fmt::format("a regular expression whose classes nest deeper than {} levels", kMaxDepth));
    const auto begin = at_++;
    const bool negated = at_ < in_.size() && in_[at_] == '^';
    if (negated) ++at_;
    std::vector<std::vector<Item>> parts(1);  // intersected
    bool first = true;
    char32_t from = kNone, range = kNone;  // the code point before; the one before a hyphen
    for (; at_ < in_.size() && (in_[at_] != ']' || first); first = false) {
      const auto count = parts.back().size();
      if (in_.compare(at_, 2, "&&") == 0) {
        at_ += 2;
        parts.emplace_back();
      } else if (in_[at_] == '\\') {
        parts.back().push_back(escape(true));
      } else if (in_[at_] == '[') {
        auto listed = posix();
        parts.back().push_back(listed ? std::move(*listed) : Item{bracket(depth + 1), true});
      } else {
        const bool is_behind_whole = !parts.back().empty() && parts.back().back().whole;
        auto sign = literal();
        // What is written between brackets need not be what stood there: a complement or a range that none was.
        if (sign.code_point == U'^' || (sign.code_point == U'-' && is_behind_whole)) sign.text.insert(0, "\\");
        parts.back().push_back(std::move(sign));
      }
      const auto now = parts.back().size() > count ? parts.back().back().code_point : kNone;
      if (range != kNone && now != kNone)
        name(range, now);
      else
        name(now, now);
      range = now == U'-' ? from : kNone;
      from = now;
    }
    if (at_ == in_.size()) return in_.substr(begin);  // never closed: PCRE2 says so
    ++at_;
    std::string all;
    bool simple = parts.size() == 1;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto [text, is_list] = united(parts[i]);
      simple = simple && is_list;
      if (simple) return (negated ? "[^" : "[") + text + "]";
      const std::string one = is_list ? "[" + text + "]" : text;
      all += i + 1 < parts.size() ? "(?=" + one + ")" : one;
    }
    return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
  }

  // The items as text for between brackets (true), or as an expression.
  static std::pair<std::string, bool> united(const std::vector<Item>& items) {
    if (items.empty()) return {"(?!)", false};  // matches nothing
    std::string listed, alternatives;
    for (const auto& item : items) (item.whole ? (alternatives += "|") : listed) += item.text;
    if (alternatives.empty()) return {listed, true};
    if (listed.empty()) return {"(?:" + alternatives.substr(1) + ")", false};
    return {"(?:[" + listed + "]" + alternatives + ")", false};
  }

  const std::string& in_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t repeatable_ = 0;     // where in out_ that begins which a quantifier would repeat
  std::vector<Group> groups_{{}};  // that are open; the first is the whole
  std::vector<std::pair<char32_t, char32_t>> named_;
};

}  // namespace

PcrePattern to_pcre(const std::string& pattern) {
  return Rewriter(pattern).run();
}

}  // namespace tessera::text
