#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::uint32_t kMaxHeapKiB = 64 << 10;

}  // namespace

struct Pattern::Code {
  std::string expression, key;
  pcre2_code* code = nullptr;

  Code(std::string from, std::string of) : expression(std::move(from)), key(std::move(of)) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &at, nullptr);
    if (code == nullptr) {
      PCRE2_UCHAR reason[160] = {};
      pcre2_get_error_message(error, reason, sizeof reason);
      throw ConfigError(fmt::format("{}: the regular expression '{}' is wrong near character {}: {}", key, expression,
                                    at, reinterpret_cast<const char*>(reason)),
                        key);
    }
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Pattern::Pattern(const std::string& expression, const std::string& key)
    : code_(std::make_shared<const Code>(expression, key)) {}

std::optional<std::string> Pattern::match(std::string_view name, const char* group) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> limits(pcre2_match_context_create(nullptr),
                                                                                    pcre2_match_context_free);
  pcre2_set_heap_limit(limits.get(), kMaxHeapKiB);  // of steps, PCRE2's own holds: ten million
  const int found =
      pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0, data.get(), limits.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    throw ConfigError(fmt::format("{}: the regular expression '{}' gives up on the name '{}'; repetitions of "
                                  "repetitions such as (a+)+ do that: rewrite it",
                                  code_->key, code_->expression, name),
                      code_->key);
  const int number = group ? pcre2_substring_number_from_name(code_->code, reinterpret_cast<PCRE2_SPTR>(group)) : 0;
  const auto* range = pcre2_get_ovector_pointer(data.get()) + 2 * std::max(number, 0);
  if (number < 0 || number >= found || range[0] == PCRE2_UNSET) return "";
  return std::string(name.substr(range[0], range[1] - range[0]));
}

}  // namespace tessera
