#include "text/base64.h"
#include "text/byte_level.h"
#include "text/json_parts.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

std::string charsmap(const JsonPlace& json) {
  std::string out;
  if (!decode_base64(json.string(), out)) json.fail("expected base64");
  return out;
}

Ends strip_ends(const JsonPlace& json) {
  const bool left = json.boolean_or("strip_left", true), right = json.boolean_or("strip_right", true);
  return left && right ? Ends::kBoth : left ? Ends::kLeft : right ? Ends::kRight : Ends::kNone;
}

BertNormalizerOptions bert_options(const JsonPlace& json) {
  BertNormalizerOptions out;
  out.clean_text = json.boolean_or("clean_text", true);
  out.handle_chinese_chars = json.boolean_or("handle_chinese_chars", true);
  out.lowercase = json.boolean_or("lowercase", true);
  out.strip_accents = json.boolean_or("strip_accents", out.lowercase);
  return out;
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

namespace {

NormalizerPtr replace(const JsonPlace& json) {
  const auto content = json.at("content").string();
  const auto from = to_utf32(json.at("pattern").string_or("String", "")), to = to_utf32(content);
  if (from.size() == 1 && to.size() == 1) return make_replace_sign(from[0], to[0]);
  return make_replace(json_pattern(json.at("pattern")), content, json.where());
}

}  // namespace

NormalizerPtr json_normalizer(const JsonPlace& json) {
  const auto type = json.at("type").string();
  if (type == "Sequence") return make_sequence(json_sequence<NormalizerPtr>(json, "normalizers", json_normalizer));
  if (type == "Precompiled") return make_precompiled(charsmap(json.at("precompiled_charsmap")), json.where());
  if (type == "NFC") return make_unicode_form(UnicodeForm::kNfc);
  if (type == "NFD") return make_unicode_form(UnicodeForm::kNfd);
  if (type == "NFKC") return make_unicode_form(UnicodeForm::kNfkc);
  if (type == "NFKD") return make_unicode_form(UnicodeForm::kNfkd);
  if (type == "Lowercase") return make_lowercase();
  if (type == "StripAccents") return make_strip_accents();
  if (type == "Strip") return make_strip(strip_ends(json));
  if (type == "Nmt") return make_nmt();
  if (type == "ByteLevel") return make_byte_level_normalizer();
  if (type == "BertNormalizer") return make_bert_normalizer(bert_options(json));
  if (type == "Prepend") return make_prepend(json.at("prepend").string());
  if (type == "Replace") return replace(json);
  json.fail(fmt::format(
      "unknown type \"{}\"; known are Sequence, Precompiled, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
      "Prepend, Replace, Nmt, ByteLevel, BertNormalizer",
      type));
}

}  // namespace tessera::text
