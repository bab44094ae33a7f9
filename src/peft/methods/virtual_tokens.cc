#include "peft/methods/virtual_tokens.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_copy.h>

#include "tensor/device.h"
#include "tessera/base/error.h"
#include "tessera/nn/embedding.h"

namespace tessera::peft {

at::Tensor VirtualTokens::in_front(const at::Tensor& tokens, const at::Tensor& prefix) const {
  if (!tokens.defined()) return tokens;
  const auto here = tensor::on_host(tokens);
  return tensor::beside(at::cat({prefix.to(here.scalar_type()), here}, 1), tokens);
}

models::ModelInput VirtualTokens::prepare(models::ModelInput in) const {
  if (!in.input_ids.defined() || (in.cache && !in.cache->empty() && kind_ == models::ModelKind::kCausal)) return in;
  if (in.row_ids.defined() && in.row_ids.dim() == 2) {
    throw DataError(
        "virtual tokens stand in front of a row, so rows of several documents do not go with them; "
        "train without packing");
  }
  const auto filled = [&](std::int64_t value) {
    return at::full({in.input_ids.size(0), count_}, value, at::TensorOptions().dtype(at::kLong));
  };
  const auto ids = at::arange(vocab_size_, vocab_size_ + count_, at::TensorOptions().dtype(at::kLong));
  in.token_type_ids = kind_ == models::ModelKind::kCausal ? at::Tensor() : in_front(in.token_type_ids, filled(0));
  in.input_ids = in_front(in.input_ids, ids.expand({in.input_ids.size(0), count_}));
  in.attention_mask = in_front(in.attention_mask, filled(1));
  // PEFT drops positions: they are columns then, also where generation counts visible tokens.
  const auto columns = at::arange(in.input_ids.size(1), at::TensorOptions().dtype(at::kLong));
  in.position_ids =
      in.cache && kind_ == models::ModelKind::kCausal ? columns.expand(in.input_ids.sizes()) : at::Tensor();
  if (kind_ == models::ModelKind::kCausal || kind_ == models::ModelKind::kMaskedLm)
    in.labels = in_front(in.labels, filled(-100));
  return in;
}

models::ModelOutput VirtualTokens::finish(models::ModelOutput out) const {
  const bool of_rows = kind_ == models::ModelKind::kCausal || kind_ == models::ModelKind::kMaskedLm;
  if (!of_rows) return out;
  for (auto* t : {&out.predictions, &out.token_logps, &out.token_statistics})
    if (t->defined()) *t = t->narrow(1, count_, t->size(1) - count_);
  return out;
}

at::Tensor PromptRows::forward(const nn::Embedding& layer, const at::Tensor& ids) {
  const auto vocab_size = layer.weight.size(0);
  const auto flat = tensor::on_host(ids).flatten(), is_virtual = flat.ge(vocab_size);
  const auto base = layer.rows(tensor::beside(flat.masked_fill(is_virtual, 0), ids));
  const auto places_here = is_virtual.nonzero().flatten(), places = tensor::beside(places_here, ids);
  auto sizes = ids.sizes().vec();
  sizes.push_back(base.size(1));
  if (places.numel() == 0) return base.view(sizes);
  const auto rows = prompt_().index_select(0, tensor::beside(flat.index_select(0, places_here) - vocab_size, ids));
  return at::index_copy(base, 0, places, rows.to(base.scalar_type())).view(sizes);
}

}  // namespace tessera::peft
