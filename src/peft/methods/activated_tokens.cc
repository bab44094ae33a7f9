#include "peft/methods/activated_tokens.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/json_text.h"
#include "models/padding.h"
#include "nn/ops/dropout_ops.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::peft {

void check_invocation(const nlohmann::json& tokens) {
  if (tokens.is_null()) return;
  const auto is_id = [](const auto& id) { return id.is_number_integer() && id.template get<std::int64_t>() >= 0; };
  if (tokens.is_array() && !tokens.empty() && std::all_of(tokens.begin(), tokens.end(), is_id)) return;
  throw ConfigError(
      "LoRA option 'alora_invocation_tokens' is a list of token ids, at least one; found " + json_text(tokens),
      "alora_invocation_tokens");
}

at::Tensor active_tokens(const at::Tensor& input_ids, const at::Tensor& position_ids,
                         const std::vector<std::int64_t>& invocation) {
  const auto ids = tensor::on_host(input_ids).contiguous();
  const auto positions = position_ids.defined() ? tensor::on_host(position_ids).contiguous() : at::Tensor();
  const auto* p = positions.defined() ? positions.const_data_ptr<std::int64_t>() : nullptr;
  auto active = at::zeros(ids.sizes(), at::TensorOptions().dtype(at::kBool));
  const auto length = ids.size(1), wanted = static_cast<std::int64_t>(invocation.size());
  for (std::int64_t b = 0; b < ids.size(0); ++b) {
    const auto* row = ids.const_data_ptr<std::int64_t>() + b * length;
    auto* out = active.mutable_data_ptr<bool>() + b * length;
    const auto end_of_document = [&](std::int64_t begin) {
      auto end = begin + 1;
      while (end < length && (!p || p[b * length + end] == p[b * length + end - 1] + 1)) ++end;
      return end;
    };
    for (std::int64_t begin = 0, end = 0; begin < length; begin = end) {
      end = end_of_document(begin);
      auto start = end - wanted;
      while (start >= begin && !std::equal(invocation.begin(), invocation.end(), row + start)) --start;
      if (start >= begin) std::fill(out + start, out + end, true);
    }
  }
  return active;
}

models::ModelInput InvocationInput::prepare(models::ModelInput in) const {
  if (!in.input_ids.defined()) return in;
  at::Tensor active;
  if (in.cache && !in.cache->empty()) {
    active = of_new_tokens(in);
  } else {
    const bool documents = in.position_ids.defined() && !in.attention_mask.defined() && !in.cache;
    active = active_tokens(in.input_ids, documents ? in.position_ids : at::Tensor(), invocation_);
    if (in.cache) {
      std::erase_if(decoding_, [](const Decoding& d) { return d.cache.expired(); });
      decoding_.push_back({in.cache, active.any(1)});
    }
  }
  const auto ids = tensor::on_host(in.input_ids) + active.to(at::kLong) * vocab_size_;
  in.input_ids = tensor::beside(ids, in.input_ids);
  return in;
}

at::Tensor InvocationInput::of_new_tokens(const models::ModelInput& in) const {
  const auto known =
      std::find_if(decoding_.begin(), decoding_.end(), [&](const Decoding& d) { return d.cache.lock() == in.cache; });
  TESSERA_CHECK(known != decoding_.end(), "the prompts of a cache were read before its new tokens");
  const auto rows = in.input_ids.size(0);  // several for a prompt stand one after another
  return known->active.repeat_interleave(rows / known->active.size(0)).unsqueeze(1).expand(in.input_ids.sizes());
}

at::Tensor ActivatedRows::forward(const nn::Embedding& layer, const at::Tensor& ids) {
  const auto here = tensor::on_host(ids), active = here.ge(layer.weight.size(0));
  tokens_->places = tensor::beside(active.flatten().nonzero().flatten(), ids);
  tokens_->tokens = ids.numel();
  return layer.rows(tensor::beside(here - active.to(at::kLong) * layer.weight.size(0), ids));
}

at::Tensor ActivatedLoraLinear::forward(const nn::Linear& layer, const at::Tensor& x) {
  const auto y = layer.product(x);
  const auto rows = x.reshape({-1, x.size(-1)});
  if (rows.size(0) != tokens_->tokens) {
    throw Error("an activated LoRA (alora_invocation_tokens) sits in a layer that works on " +
                std::to_string(rows.size(0)) + " of " + std::to_string(tokens_->tokens) +
                " tokens; leave the output head and experts out of target_modules");
  }
  const auto low = low_rank(layer);
  const tensor::RowScope keys(models::keys_at(tokens_->places));
  const auto chosen = nn::dropout(rows.index_select(0, tokens_->places).to(low.a.scalar_type()), low.dropout);
  const auto update = ((*b)((*a)(chosen))*low.scaling).to(y.scalar_type());
  return at::index_add(y.reshape({-1, y.size(-1)}), 0, tokens_->places, update).view(y.sizes());
}

}  // namespace tessera::peft
