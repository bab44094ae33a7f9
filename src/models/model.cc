#include "models/model.h"

#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "io/tensor_source.h"
#include "models/config_reader.h"
#include "models/gguf_model.h"
#include "models/t5_model.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::models {

void collect_tensors(ModelInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.input_ids, &in.attention_mask, &in.position_ids, &in.token_type_ids, &in.decoder_input_ids,
                         &in.labels, &in.encoder_output});
}

void collect_tensors(ModelOutput& o, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&o.loss, &o.logits, &o.predictions, &o.encoder_output});
  for (auto& t : o.encoder_hidden) out.push_back(&t);
  for (auto& t : o.decoder_hidden) out.push_back(&t);
}

std::shared_ptr<Model> build_model(const std::string& folder, ModelConfig* config,
                                   std::optional<at::ScalarType> dtype) {
  const std::string file = folder + "/config.json";
  const auto json = read_model_config(folder);
  const auto type = ConfigReader(json, file).get<std::string>("model_type", "");
  static const std::vector<std::string> kTypes = {"mt5", "t5", "umt5"};
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    throw ConfigError(file + ": model_type '" + type + "' is not a known sequence-to-sequence family (mt5, t5, umt5)" +
                          did_you_mean(type, kTypes),
                      "model_type");
  }
  const auto t5 = parse_t5_config(json, file);
  if (config) {
    *config = {type,
               folder,
               {t5.class_prefix + "Block"},
               {"q", "v"},
               t5.vocab_size,
               t5.pad_token_id,
               t5.eos_token_id,
               t5.decoder_start_token_id,
               "SEQ_2_SEQ_LM",
               t5.stored_dtype,
               ModelKind::kSeq2Seq,
               0};
  }
  return std::make_shared<T5ForConditionalGeneration>(t5, dtype.value_or(at::kFloat));
}

}  // namespace tessera::models
