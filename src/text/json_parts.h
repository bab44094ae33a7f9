#pragma once
// The stages of tokenizer.json, one factory each. An unknown "type" is a DataError that lists the known ones.
#include "text/json_reader.h"
#include "text/pipeline.h"

namespace tessera::text {

NormalizerPtr json_normalizer(const JsonPlace& json);
PreTokenizerPtr json_pre_tokenizer(const JsonPlace& json);
/// Numbers of a file are those that upstream's reader makes of them; a converted vocabulary never was text there.
enum class Origin { kFile, kConverted };
std::unique_ptr<const Model> json_model(const JsonPlace& json, Origin origin = Origin::kFile);
PostProcessor json_post_processor(const JsonPlace& json);
DecoderPtr json_decoder(const JsonPlace& json);

/// A "pattern": {"String": "..."} or {"Regex": "..."} -> an expression.
std::string json_pattern(const JsonPlace& json);

/// Calls f for every item of json[key], nested sequences within limits.
template <class Ptr, class F>
std::vector<Ptr> json_sequence(const JsonPlace& json, const char* key, F f) {
  std::vector<Ptr> out;
  for (const auto& item : json.at(key).items()) out.push_back(f(item));
  return out;
}

}  // namespace tessera::text
