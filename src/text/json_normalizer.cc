#include "text/json_parts.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

std::string decode_base64(const JsonPlace& json) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (unsigned char c : json.string()) {
    if (c == '=') break;
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) json.fail("expected base64");
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) out += static_cast<char>(bits >> (count -= 8));
  }
  return out;
}

Ends strip_ends(const JsonPlace& json) {
  const bool left = json.boolean_or("strip_left", true), right = json.boolean_or("strip_right", true);
  if (!left && !right) json.fail("expected strip_left or strip_right to be true");
  return left && right ? Ends::kBoth : left ? Ends::kLeft : Ends::kRight;
}

}  // namespace

char32_t JsonPlace::code_point() const {
  const auto text = to_utf32(string());
  if (text.size() != 1) fail("expected one character");
  return text[0];
}

std::string json_pattern(const JsonPlace& json) {
  if (json.has("String")) return quote_regex(json.at("String").string());
  return json.at("Regex").string();
}

NormalizerPtr json_normalizer(const JsonPlace& json) {
  const auto type = json.at("type").string();
  if (type == "Sequence") return make_sequence(json_sequence<NormalizerPtr>(json, "normalizers", json_normalizer));
  if (type == "Precompiled") return make_precompiled(decode_base64(json.at("precompiled_charsmap")), json.where());
  if (type == "NFC") return make_unicode_form(UnicodeForm::kNfc);
  if (type == "NFD") return make_unicode_form(UnicodeForm::kNfd);
  if (type == "NFKC") return make_unicode_form(UnicodeForm::kNfkc);
  if (type == "NFKD") return make_unicode_form(UnicodeForm::kNfkd);
  if (type == "Lowercase") return make_lowercase();
  if (type == "StripAccents") return make_strip_accents();
  if (type == "Strip") return make_strip(strip_ends(json));
  if (type == "Prepend") return make_prepend(json.at("prepend").string());
  if (type == "Replace")
    return make_replace(json_pattern(json.at("pattern")), json.at("content").string(), json.where());
  json.fail(fmt::format(
      "unknown type \"{}\"; known are Sequence, Precompiled, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
      "Prepend, Replace",
      type));
}

}  // namespace tessera::text
