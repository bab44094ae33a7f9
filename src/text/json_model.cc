#include "text/json_parts.h"

namespace tessera::text {

std::unique_ptr<const Model> json_model(const JsonPlace& json) {
  // Files from before version 0.8 of the reference library have no type for Unigram; a vocabulary of pairs tells it.
  const auto type = json.string_or("type", "Unigram");
  if (type != "Unigram") json.fail(fmt::format("unknown type \"{}\"; known is Unigram", type));
  UnigramOptions out;
  const auto vocabulary = json.at("vocab");
  simdjson::dom::array pieces;
  if (vocabulary.element().get(pieces)) vocabulary.fail("expected an array of [token, score]");
  for (auto piece : pieces) {
    std::string_view token;
    double score = 0;
    simdjson::dom::array pair;
    if (piece.get(pair) || pair.size() != 2 || pair.at(0).get(token) || pair.at(1).get(score))
      vocabulary.fail(fmt::format("entry {} must be [token, score]", out.pieces.size()));
    out.pieces.emplace_back(token, score);
  }
  if (json.has("unk_id")) {
    const auto id = json.at("unk_id").integer();
    if (id < 0 || id >= static_cast<std::int64_t>(out.pieces.size())) json.at("unk_id").fail("no such piece");
    out.unk_id = static_cast<std::int32_t>(id);
  }
  out.byte_fallback = json.boolean_or("byte_fallback", false);
  return make_unigram(std::move(out), json.where());
}

}  // namespace tessera::text
