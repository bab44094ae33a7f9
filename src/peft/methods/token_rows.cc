#include "peft/methods/token_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/tensor.h>

#include <set>

#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

at::Tensor to_tensor(const std::vector<std::int64_t>& ids) {
  return at::tensor(ids, at::TensorOptions().dtype(at::kLong));
}

}  // namespace

std::string TokenRows::name(TokenRowsPlace place) {
  return place == TokenRowsPlace::kAlone ? "trainable_tokens_delta.default"
                                         : "token_adapter.trainable_tokens_delta.default";
}

TokenRows::TokenRows(const nn::Embedding& layer, const std::vector<std::int64_t>& ids, TokenRowsPlace place)
    : ids_(to_tensor(ids)), row_of_(at::full({layer.weight.size(0)}, -1, at::TensorOptions().dtype(at::kLong))) {
  row_of_.index_copy_(0, ids_, at::arange(ids_.numel(), ids_.options()));
  rows_ = nn::make_parameter({ids_.numel(), layer.weight.size(1)}, at::kFloat);
  if (place == TokenRowsPlace::kAlone) {
    rows_ = add_module("trainable_tokens_delta", "ParameterDict").register_parameter("default", rows_);
  } else {
    auto inner = std::make_shared<nn::AdapterModule>("ParameterDict");
    rows_ = inner->register_parameter("default", rows_);
    add_module("token_adapter", "TrainableTokensLayer").register_module("trainable_tokens_delta", inner);
  }
}

at::Tensor TokenRows::forward(const nn::Embedding& layer, const at::Tensor& ids) {
  const auto flat = ids.flatten();
  const auto base = layer.rows(flat);
  const auto wanted = row_of_.to(flat.device()).index_select(0, flat);
  auto trains = wanted.ge(0);
  if (layer.padding_idx() >= 0) trains = trains.logical_and(flat.ne(layer.padding_idx()));
  auto sizes = ids.sizes().vec();
  sizes.push_back(base.size(1));
  const auto put = [&](const at::Tensor& out, const at::Tensor& where, const at::Tensor& rows) {
    const auto places = where.nonzero().flatten();
    return at::index_copy(out, 0, places, rows.index_select(0, wanted.index_select(0, places)).to(out.scalar_type()));
  };
  const auto out = put(base, trains, rows_);
  if (layer.padding_idx() < 0) return out.view(sizes);
  // As in torch.nn.Embedding, lookups of the padding leave no gradient.
  return put(out, wanted.ge(0).logical_and(flat.eq(layer.padding_idx())), rows_.detach()).view(sizes);
}

at::Tensor TokenRows::head_weight(const nn::Embedding& layer) {
  return at::index_copy(layer.weight, 0, ids_.to(layer.weight.device()), rows_.to(layer.weight.scalar_type()));
}

void attach_token_rows(const Slot& slot, const std::vector<std::int64_t>& ids, TokenRowsPlace place,
                       const std::string& key) {
  if (!slot.embedding) {
    throw ConfigError(key + ": '" + slot.name + "' is no embedding; trainable tokens are rows of the token table", key);
  }
  if (ids.empty()) throw ConfigError(key + " names no token", key);
  std::set<std::int64_t> seen;
  for (const auto id : ids) {
    if (id < 0 || id >= slot.weight().size(0)) {
      throw ConfigError(key + ": token " + std::to_string(id) + " is outside of '" + slot.name + "', which has " +
                            std::to_string(slot.weight().size(0)) + " rows",
                        key);
    }
    if (!seen.insert(id).second) throw ConfigError(key + " names token " + std::to_string(id) + " twice", key);
  }
  if (slot.adapter()) {
    throw ConfigError(key + ": '" + slot.name + "' has another adapter already; leave it out of target_modules", key);
  }
  slot.embedding->attach(std::make_shared<TokenRows>(*slot.embedding, ids, place));
}

at::Tensor with_rows(const at::Tensor& table, const std::vector<std::int64_t>& ids, const at::Tensor& rows) {
  return at::index_copy(table, 0, to_tensor(ids), rows.detach().to(table.scalar_type()));
}

at::Tensor rows_of(const at::Tensor& table, const std::vector<std::int64_t>& ids) {
  return table.index_select(0, to_tensor(ids));
}

}  // namespace tessera::peft
