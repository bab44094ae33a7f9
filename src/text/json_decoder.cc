#include "text/byte_level.h"
#include "text/json_parts.h"

namespace tessera::text {

DecoderPtr json_decoder(const JsonPlace& json) {
  const auto type = json.at("type").string();
  if (type == "Sequence") return make_sequence(json_sequence<DecoderPtr>(json, "decoders", json_decoder));
  if (type == "Metaspace") {
    const auto scheme =
        json.string_or("prepend_scheme", json.boolean_or("add_prefix_space", true) ? "always" : "never");
    return make_metaspace_decoder(json.has("replacement") ? json.at("replacement").code_point() : 0x2581,
                                  scheme != "never");
  }
  if (const auto text = json.has("pattern") ? json.at("pattern").string_or("String", "") : "";
      type == "Replace" && !text.empty())
    return make_literal_replace_decoder(text, json.at("content").string());
  if (type == "Replace")
    return make_replace_decoder(json_pattern(json.at("pattern")), json.at("content").string(), json.where());
  if (type == "Fuse") return make_fuse_decoder();
  if (type == "ByteFallback") return make_byte_fallback_decoder();
  if (type == "Strip") {
    const auto start = json.at("start").integer(), stop = json.at("stop").integer();
    if (start < 0 || stop < 0) json.fail("start and stop must not be negative");
    return make_strip_decoder(json.at("content").code_point(), static_cast<std::size_t>(start),
                              static_cast<std::size_t>(stop));
  }
  if (type == "ByteLevel") return make_byte_level_decoder();
  if (type == "WordPiece")
    return make_word_piece_decoder(json.string_or("prefix", "##"), json.boolean_or("cleanup", true));
  if (type == "BPEDecoder") return make_bpe_decoder(json.string_or("suffix", "</w>"));
  if (type == "CTC")
    return make_ctc_decoder(json.string_or("pad_token", "<pad>"), json.string_or("word_delimiter_token", "|"),
                            json.boolean_or("cleanup", true));
  json.fail(
      fmt::format("unknown type \"{}\"; known are Sequence, Metaspace, Replace, Fuse, ByteFallback, Strip, ByteLevel, "
                  "WordPiece, BPEDecoder, CTC",
                  type));
}

}  // namespace tessera::text
