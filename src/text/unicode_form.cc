#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "text/character_classes.h"
#include "text/normalizer.h"

namespace tessera::text {
namespace {

// Values of utf8proc's, never changed once Unicode has given them, but for those code points only that the reference
// knows.
int combining_class(char32_t c) {
  if (c < 0x300 || !has_class(c, kNormalizes)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// The one code point that the two make up, or 0.
char32_t compose(char32_t first, char32_t second) {
  std::array<utf8proc_int32_t, 2> pair{static_cast<utf8proc_int32_t>(first), static_cast<utf8proc_int32_t>(second)};
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const bool one = utf8proc_normalize_utf32(pair.data(), 2, kOptions) == 1;
  return one && has_class(static_cast<char32_t>(pair[0]), kNormalizes) ? static_cast<char32_t>(pair[0]) : 0;
}

// NFC, NFD, NFKC, NFKD (Unicode annex 15). What composes vanishes at the place of the code point that it joins, as the
// reference counts.
class Form final : public Normalizer {
 public:
  explicit Form(UnicodeForm form)
      : compose_(form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc),
        compat_(form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) {}

  void normalize(AlignedText& text, std::int32_t origin) const override {
    const char32_t settled = compose_ && !compat_ ? 0x300 : 0xA0;  // no code point below it changes or joins
    if (std::all_of(text.begin(), text.end(), [&](const AlignedChar& a) { return a.c < settled; })) return;
    std::vector<Rewrite> rewrites;
    rewrites.reserve(text.size() + 8);
    std::vector<Rewrite> run;
    bool changed = false;
    for (std::size_t begin = 0; begin < text.size();) {
      auto end = begin + 1;
      while (end < text.size() && joins(text[end].c)) ++end;
      if (end == begin + 1 && stays(text[begin].c, settled)) {
        rewrites.push_back({text[begin].c, 0});
      } else {
        changed = true;
        run.clear();
        for (auto i = begin; i < end; ++i) decompose(text[i].c, run);
        sort_marks(run);
        if (compose_) compose_run(run);
        rewrites.insert(rewrites.end(), run.begin(), run.end());
      }
      begin = end;
    }
    if (!changed) return;
    AlignedText out;
    out.reserve(rewrites.size());
    rewrite(text.data(), text.data() + text.size(), 0, rewrites, origin, out);
    text.swap(out);
  }

 private:
  // What a form may move or join to the code point before it: marks, the vowels and final consonants of Hangul, and
  // what becomes one of these.
  bool joins(char32_t c) const {
    if (c < 0x300) return false;
    if (c >= 0x1160 && c <= 0x11FF) return true;
    if (compat_ && ((c >= 0x3131 && c <= 0x318E) || (c >= 0xFF9E && c <= 0xFFDC))) return true;
    return has_class(c, kMark);
  }

  bool stays(char32_t c, char32_t settled) const {
    if (c < settled) return true;
    if (c >= 0xAC00 && c <= 0xD7A3) return compose_;  // Hangul syllables
    return !has_class(c, kNormalizes);
  }

  void decompose(char32_t c, std::vector<Rewrite>& out) const {
    if (!has_class(c, kNormalizes)) return out.push_back({c, 0});
    std::array<utf8proc_int32_t, 32> made{};
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compat_ ? UTF8PROC_COMPAT : 0));
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), made.data(), made.size(), options, &boundary);
    if (count < 1 || count > static_cast<utf8proc_ssize_t>(made.size())) return out.push_back({c, 0});
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      out.push_back({static_cast<char32_t>(made[static_cast<std::size_t>(i)]), i > 0 ? 1 : 0});
  }

  // Marks that follow one another are ordered by class, those of one class stay in order.
  static void sort_marks(std::vector<Rewrite>& run) {
    std::vector<std::pair<std::pair<int, std::size_t>, Rewrite>> marks;
    for (std::size_t begin = 0; begin < run.size();) {
      marks.clear();
      auto end = begin;
      for (; end < run.size() && combining_class(run[end].c) != 0; ++end)
        marks.push_back({{combining_class(run[end].c), end}, run[end]});
      if (marks.size() > 1) {
        std::sort(marks.begin(), marks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        for (std::size_t i = 0; i < marks.size(); ++i) run[begin + i] = marks[i].second;
      }
      begin = end + 1;
    }
  }

  static void compose_run(std::vector<Rewrite>& run) {
    std::size_t kept = 0, starter = run.size();  // the last code point that others may join; none yet
    int last_class = -1;  // of what lies between the starter and the next code point; -1: nothing
    for (const auto now : run) {
      const int now_class = combining_class(now.c);
      if (starter < kept && last_class < (now_class == 0 ? 0 : now_class)) {
        if (const auto joined = compose(run[starter].c, now.c)) {
          run[starter] = {joined, run[starter].change + now.change - 1};
          continue;
        }
      }
      if (now_class == 0) {
        starter = kept;
        last_class = -1;
      } else {
        last_class = now_class;
      }
      run[kept++] = now;
    }
    run.resize(kept);
  }

  bool compose_, compat_;
};

}  // namespace

NormalizerPtr make_unicode_form(UnicodeForm form) {
  return std::make_unique<Form>(form);
}

}  // namespace tessera::text
