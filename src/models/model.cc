#include "models/model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/config_reader.h"
#include "models/families.h"
#include "models/gguf_model.h"
#include "tensor/storage.h"
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
  for (auto& t : o.hidden) out.push_back(&t);
}

std::shared_ptr<nn::Linear> make_untied_head(const at::Tensor& table) {
  auto head = std::make_shared<nn::Linear>(table.size(1), table.size(0), false, table.scalar_type());
  if (tensor::is_detached(table)) return head;
  nn::allocate(head->weight);
  head->weight.detach().copy_(table.detach());
  return head;
}

std::shared_ptr<Model> build_model(const std::string& folder, ModelConfig* config, const BuildOptions& options) {
  const std::string file = folder + "/config.json";
  auto json = read_model_config(folder);
  if (options.min_vocab_size > 0)
    json["vocab_size"] = std::max(options.min_vocab_size, json.value("vocab_size", std::int64_t{0}));
  if (!options.attn_implementation.empty()) json["attn_implementation"] = options.attn_implementation;
  const auto type = ConfigReader(json, file).get<std::string>("model_type", "");
  ModelConfig found;
  found.model_type = type;
  found.folder = folder;
  auto model = find_family(type, file).build({json, file, options.dtype.value_or(at::kFloat)}, found);
  if (config) *config = std::move(found);
  return model;
}

}  // namespace tessera::models
