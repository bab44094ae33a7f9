#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "tessera/base/error.h"

namespace tessera::text {

struct Regex::Impl {
  pcre2_code* code = nullptr;
  std::string where;
  ~Impl() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern, const std::string& where) : impl_(std::make_unique<Impl>()) {
  int error = 0;
  PCRE2_SIZE at = 0;
  impl_->where = where;
  impl_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                              &error, &at, nullptr);
  if (!impl_->code) {
    PCRE2_UCHAR message[160] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw DataError(fmt::format("{}: the regular expression \"{}\" is wrong at character {}: {}", where, pattern, at,
                                reinterpret_cast<const char*>(message)));
  }
  pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter matches
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

std::vector<std::pair<std::size_t, std::size_t>> Regex::find_all(std::string_view utf8) const {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(impl_->code, nullptr), pcre2_match_data_free);
  for (std::size_t at = 0; at < utf8.size();) {
    const int found = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(utf8.data()), utf8.size(), at,
                                  PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw DataError(fmt::format("{}: matching its regular expression failed (PCRE2 error {})", impl_->where, found));
    const auto* range = pcre2_get_ovector_pointer(data.get());
    if (range[1] > range[0]) {
      out.emplace_back(range[0], range[1]);
      at = range[1];
    } else {  // an empty match: on to the next code point
      at = range[1] + 1;
      while (at < utf8.size() && (static_cast<unsigned char>(utf8[at]) & 0xC0) == 0x80) ++at;
    }
  }
  return out;
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
