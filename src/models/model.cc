#include "models/model.h"

#include "tensor/storage.h"
#include "tessera/nn/init.h"

namespace tessera::models {

void collect_tensors(ModelInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.input_ids, &in.attention_mask, &in.position_ids, &in.token_type_ids, &in.decoder_input_ids,
                         &in.labels, &in.encoder_output});
  for (auto& part : in.parts) collect_tensors(part, out);
}

void collect_tensors(ModelOutput& o, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&o.loss, &o.logits, &o.predictions, &o.token_logps, &o.token_statistics, &o.encoder_output});
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

}  // namespace tessera::models
