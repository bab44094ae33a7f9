#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>
#include <time.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "text/character_classes.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr std::size_t kMaxExpressionBytes = 65'536;
constexpr std::uint32_t kMaxSteps = 10'000'000;  // from one place of the text
constexpr std::uint32_t kMaxHeapKiB = 64 << 10;

/// A search may take a second and 2 us a byte, on the clock and then of the thread's own time (the process may have
/// stood still); what tokenizers search with takes a tenth of that. PCRE2's limits are for one place of the text, and
/// every place may come close to them.
class SearchTime {
 public:
  explicit SearchTime(std::size_t bytes)
      : limit_(1 + 2e-6 * static_cast<double>(bytes)), end_(seconds(CLOCK_MONOTONIC_COARSE) + limit_) {}
  /// was_long: what was done since the last look may have taken long; else the clock is read now and then.
  bool over(bool was_long) {
    if ((++looks_ % 8 != 0 && !was_long) || seconds(CLOCK_MONOTONIC_COARSE) < end_) return false;
    const double own = seconds(CLOCK_THREAD_CPUTIME_ID);
    if (own_end_ == 0) own_end_ = own + limit_;
    return own > own_end_;
  }

 private:
  static double seconds(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  double limit_, end_, own_end_ = 0;
  unsigned looks_ = 0;
};

/// How many places one call of PCRE2 may begin at, which cannot be interrupted: each may look at the whole text.
std::size_t places_of_a_call(std::size_t bytes) {
  return std::clamp<std::size_t>((64 << 20) / (bytes + 1), 16, 4096);
}

}  // namespace

struct Regex::Impl {
  struct Code {
    pcre2_code* code = nullptr;

    Code() = default;
    Code(const Code&) = delete;
    ~Code() { pcre2_code_free(code); }
    void compile(const std::string& pattern, const std::string& original, const std::string& where) {
      int error = 0;
      PCRE2_SIZE at = 0;
      // In Ruby's syntax ^ and $ always match at lines. Of two complements one behind the other, as \P{N}?\P{L}, PCRE2
      // 10.42 makes the first possessive, which finds less.
      code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                           PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | PCRE2_NO_AUTO_POSSESS,
                           &error, &at, nullptr);
      if (!code) {
        PCRE2_UCHAR message[160] = {};
        pcre2_get_error_message(error, message, sizeof message);
        throw DataError(fmt::format("{}: the regular expression \"{}\" is wrong near character {}: {}", where, original,
                                    at, reinterpret_cast<const char*>(message)));
      }
      pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter matches
    }
  };

  Code code;
  std::string where;
  std::vector<std::pair<char32_t, char32_t>> named;

  bool is_named(char32_t c) const {
    return std::any_of(named.begin(), named.end(), [c](const auto& run) { return run.first <= c && c <= run.second; });
  }

  // PCRE2's tables are of another Unicode version than the reference's. Where they may differ, the text that is
  // searched gets a code point that both know alike; matches are at the same bytes.
  std::string searched(const AlignedChar* begin, const AlignedChar* end) const {
    const auto* classes = class_table();
    std::string out;
    out.reserve(static_cast<std::size_t>(end - begin) + 16);
    for (; begin != end; ++begin) {
      const bool newer = (classes[begin->c] & kNewerThanPcre) != 0 && !is_named(begin->c);
      append_utf8(newer ? stand_in(begin->c) : begin->c, out);
    }
    return out;
  }
};

Regex::Regex(const std::string& pattern, const std::string& where) : impl_(std::make_unique<Impl>()) {
  impl_->where = where;
  if (pattern.size() > kMaxExpressionBytes)
    throw DataError(fmt::format("{}: a regular expression of {} bytes; at most {} are taken", where, pattern.size(),
                                kMaxExpressionBytes));
  PcrePattern rewritten;
  try {
    rewritten = to_pcre(pattern);
  } catch (const DataError& e) {
    throw DataError(fmt::format("{}: {}", where, e.what()));
  }
  impl_->code.compile(rewritten.text, pattern, where);
  impl_->named = std::move(rewritten.named);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

std::vector<std::pair<std::size_t, std::size_t>> Regex::find_all(const AlignedChar* begin,
                                                                 const AlignedChar* end) const {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  const auto utf8 = impl_->searched(begin, end);
  const auto* code = impl_->code.code;
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> limits(pcre2_match_context_create(nullptr),
                                                                                    pcre2_match_context_free);
  pcre2_set_match_limit(limits.get(), kMaxSteps);
  pcre2_set_heap_limit(limits.get(), kMaxHeapKiB);
  const std::size_t places = places_of_a_call(utf8.size());
  SearchTime time(utf8.size());
  std::uint32_t may_be_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  const auto next_code_point = [&](std::size_t at) {
    ++at;
    while (at < utf8.size() && is_continuation(utf8[at])) ++at;
    return at;
  };
  for (std::size_t at = 0; at < utf8.size() || (may_be_empty && at == utf8.size() && at > 0);) {
    const auto match = [&](std::uint32_t options) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(utf8.data()), utf8.size(), at, PCRE2_NO_UTF_CHECK | options,
                         data.get(), limits.get());
    };
    const std::size_t last_place = at + places;
    pcre2_set_offset_limit(limits.get(), last_place);
    int found = match(0);
    const bool is_slow = found == PCRE2_ERROR_JIT_STACKLIMIT;
    if (is_slow) found = match(PCRE2_NO_JIT);  // its stack is on the heap
    if (found == PCRE2_ERROR_NOMATCH && last_place >= utf8.size()) break;
    const bool is_over = time.over(is_slow || found == PCRE2_ERROR_NOMATCH);
    if (is_over || (found < 0 && found != PCRE2_ERROR_NOMATCH)) {
      const bool memory = found == PCRE2_ERROR_NOMEMORY || found == PCRE2_ERROR_HEAPLIMIT;
      throw DataError(
          fmt::format("{}: its regular expression gives up on a text of {} bytes: it needs too {}; repetitions of "
                      "repetitions such as (a+)+ do that: rewrite the expression, or split the text",
                      impl_->where, utf8.size(),
                      is_over  ? "much time"
                      : memory ? "much memory"
                               : "many steps"));
    }
    if (found == PCRE2_ERROR_NOMATCH) {
      at = next_code_point(last_place);
      continue;
    }
    const auto* range = pcre2_get_ovector_pointer(data.get());
    at = range[1];
    if (range[1] > range[0] || out.empty() || out.back().second != range[1]) {
      out.emplace_back(range[0], range[1]);
    } else {  // an empty match right behind a match does not count: on to the next code point
      at = next_code_point(at);
    }
  }
  return out;
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::find_all(std::string_view utf8) const {
  const auto text = align(utf8);
  return find_all(text.data(), text.data() + text.size());
}

std::string quote_regex(const std::string& text) {
  std::string out;
  for (char c : text) {
    const bool plain = (static_cast<unsigned char>(c) & 0x80) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                       (c >= 'A' && c <= 'Z');
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace tessera::text
