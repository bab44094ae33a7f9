#include "text/regex_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

// What Oniguruma counts as part of a word: as Unicode's annex 18, without the joiners.
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
// And these, but not where \w stands between brackets.
constexpr std::string_view kLatinNumbers = R"(\xB2\xB3\xB9\xBC-\xBE)";
constexpr std::string_view kSpace = R"(\t-\r \x{85}\p{Z})";

// The members of the class, as written between brackets; "": the escape means the same in PCRE2.
std::string members(char escape, SpaceClass space, bool in_brackets) {
  if (escape == 'w' || escape == 'W') return std::string(kWord) + std::string(in_brackets ? "" : kLatinNumbers);
  if (escape == 'h' || escape == 'H') return "0-9a-fA-F";
  if ((escape == 's' || escape == 'S') && space == SpaceClass::kExact) return std::string(kSpace);
  return "";
}

// PCRE2's POSIX classes are those of ASCII, with a few additions. "": the same, or not known here.
std::string_view posix_members(std::string_view name, bool negated) {
  constexpr std::array<Pair, 8> kClasses{{{"alpha", R"(\p{Alphabetic})"},
                                          {"digit", R"(\p{Nd})"},
                                          {"upper", R"(\p{Uppercase})"},
                                          {"lower", R"(\p{Lowercase})"},
                                          {"alnum", R"(\p{Alphabetic}\p{Nd})"},
                                          {"punct", R"(\p{P}\p{S})"},
                                          {"space", kSpace},
                                          {"word", kWord}}};
  constexpr std::array<Pair, 4> kNegated{{{"alpha", R"(\P{Alphabetic})"},
                                          {"digit", R"(\P{Nd})"},
                                          {"upper", R"(\P{Uppercase})"},
                                          {"lower", R"(\P{Lowercase})"}}};
  const auto in = [&](const auto& list) {
    const auto it = std::find_if(list.begin(), list.end(), [&](const Pair& p) { return p.first == name; });
    return it == list.end() ? std::string_view() : it->second;
  };
  return negated ? in(kNegated) : in(kClasses);
}

// Long names that PCRE2 does not have, or has for ASCII alone.
std::string_view general_category(std::string_view name) {
  constexpr std::array<Pair, 40> kNames{{{"letter", "L"},
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

class Rewriter {
 public:
  Rewriter(const std::string& pattern, SpaceClass space) : in_(pattern), space_(space) {}

  std::string run() {
    std::string out;
    while (at_ < in_.size()) {
      if (in_[at_] == '[')
        out += bracket();
      else if (in_[at_] == '\\')
        out += escape(false).text;
      else
        out += in_[at_++];
    }
    return out;
  }

 private:
  // A part of a class: text for between brackets, or (`whole`) an expression that matches one character.
  struct Item {
    std::string text;
    bool whole = false;
  };

  static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

  // At a backslash. Between brackets a class that is a complement cannot be listed, and becomes an expression.
  Item escape(bool in_brackets) {
    if (++at_ == in_.size()) return {"\\"};
    const char c = in_[at_++];
    if (c == 'p' || c == 'P') return {property(c)};
    if (c == 'u' && is_hex(at_, 4)) {
      at_ += 4;
      return {"\\x{" + in_.substr(at_ - 4, 4) + "}"};
    }
    if ((c == 'b' || c == 'B') && !in_brackets) {  // where \w, as it is rewritten, begins or ends
      const std::string word = "[" + members('w', space_, false) + "]";
      const char* form = c == 'b' ? "(?:(?<={0})(?!{0})|(?<!{0})(?={0}))" : "(?:(?<={0})(?={0})|(?<!{0})(?!{0}))";
      return {fmt::format(fmt::runtime(form), word)};
    }
    const std::string inner = members(c, space_, in_brackets);
    if (inner.empty()) return {std::string("\\") + c};
    if (!is_upper(c)) return {in_brackets ? inner : "[" + inner + "]"};
    return {"[^" + inner + "]", true};
  }

  bool is_hex(std::size_t at, std::size_t count) const {
    if (at + count > in_.size()) return false;
    return std::all_of(in_.begin() + static_cast<std::ptrdiff_t>(at),
                       in_.begin() + static_cast<std::ptrdiff_t>(at + count),
                       [](unsigned char c) { return std::isxdigit(c) != 0; });
  }

  std::string property(char escape) {
    const auto end = in_.find('}', at_);
    if (at_ >= in_.size() || in_[at_] != '{' || end == std::string::npos) return std::string("\\") + escape;
    const std::string written = in_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    const bool negated = written.starts_with('^');
    std::string name;
    for (const char c : written.substr(negated ? 1 : 0))
      if (c != '_' && c != ' ' && c != '-') name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::string known;
    if (const auto category = general_category(name); !category.empty())
      known = category;
    else if (is_script(name))
      known = "sc:" + name;
    else
      return std::string("\\") + escape + "{" + written + "}";
    return std::string("\\") + escape + (negated ? "{^" : "{") + known + "}";
  }

  // [[:name:]], at the inner bracket; empty where it is none.
  std::string posix() {
    const auto end = in_.find(":]", at_ + 2);
    if (in_.compare(at_, 2, "[:") != 0 || end == std::string::npos || end - at_ > 12) return {};
    std::string_view name = std::string_view(in_).substr(at_ + 2, end - at_ - 2);
    const std::string whole = in_.substr(at_, end + 2 - at_);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::islower(c); }))
      return {};
    at_ = end + 2;
    const auto listed = posix_members(name, negated);
    return listed.empty() ? whole : std::string(listed);
  }

  // A class, at its opening bracket, with nested ones and intersections.
  std::string bracket() {
    const auto begin = at_++;
    const bool negated = at_ < in_.size() && in_[at_] == '^';
    if (negated) ++at_;
    std::vector<std::vector<Item>> parts(1);  // intersected
    bool first = true;
    for (; at_ < in_.size() && (in_[at_] != ']' || first); first = false) {
      if (in_.compare(at_, 2, "&&") == 0) {
        at_ += 2;
        parts.emplace_back();
      } else if (in_[at_] == '\\') {
        parts.back().push_back(escape(true));
      } else if (in_[at_] == '[') {
        std::string listed = posix();
        const bool nested = listed.empty();
        parts.back().push_back({nested ? bracket() : std::move(listed), nested});
      } else {
        parts.back().push_back({std::string(1, in_[at_++])});
      }
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
    std::string listed, alternatives;
    for (const auto& item : items) (item.whole ? (alternatives += "|") : listed) += item.text;
    if (alternatives.empty()) return {listed, true};
    if (listed.empty()) return {"(?:" + alternatives.substr(1) + ")", false};
    return {"(?:[" + listed + "]" + alternatives + ")", false};
  }

  const std::string& in_;
  SpaceClass space_;
  std::size_t at_ = 0;
};

}  // namespace

std::string to_pcre(const std::string& pattern, SpaceClass space) {
  return Rewriter(pattern, space).run();
}

}  // namespace tessera::text
