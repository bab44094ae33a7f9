#include "peft/methods/token_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/tensor.h>

#include <set>

#include "nn/ops/matmul.h"
#include "tensor/device.h"
#include "tessera/base/error.h"
#include "tessera/nn/adapter.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

at::Tensor to_tensor(const std::vector<std::int64_t>& ids) {
  return at::tensor(ids, at::TensorOptions().dtype(at::kLong));
}

/// What both kinds of layers get: the parameter, and the modules that lead to it.
template <class LayersAdapter>
class TokenRows : public LayersAdapter {
 public:
  TokenRows(const at::Tensor& weight, const std::vector<std::int64_t>& ids, TokenRowsPlace place)
      : ids_(to_tensor(ids)) {
    rows_ = nn::make_parameter({ids_.numel(), weight.size(1)}, at::kFloat);
    if (place == TokenRowsPlace::kAlone) {
      rows_ = this->add_module("trainable_tokens_delta", "ParameterDict").register_parameter("default", rows_);
    } else {
      auto inner = std::make_shared<nn::AdapterModule>("ParameterDict");
      rows_ = inner->register_parameter("default", rows_);
      this->add_module("token_adapter", "TrainableTokensLayer").register_module("trainable_tokens_delta", inner);
    }
  }
  std::string class_name() const override { return "trainable_tokens.TrainableTokensLayer"; }

 protected:
  at::Tensor ids_;   // [n] int64
  at::Tensor rows_;  // [n, dim]
};

class RowsOfTable final : public TokenRows<nn::EmbeddingAdapter> {
 public:
  RowsOfTable(const at::Tensor& weight, const std::vector<std::int64_t>& ids, TokenRowsPlace place)
      : TokenRows(weight, ids, place), row_of_(at::full({weight.size(0)}, -1, at::TensorOptions().dtype(at::kLong))) {
    row_of_.index_copy_(0, ids_, at::arange(ids_.numel(), ids_.options()));
  }
  at::Tensor forward(const nn::Embedding& layer, const at::Tensor& ids) override;
  at::Tensor head_weight(const nn::Embedding& layer) override;

 private:
  at::Tensor row_of_;  // [num] int64, -1: none
};

class RowsOfHead final : public TokenRows<nn::LinearAdapter> {
 public:
  using TokenRows::TokenRows;
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override {
    const auto scores = layer.product(x);
    const auto ids = tensor::beside(ids_, x);
    auto own = nn::matmul(x, rows_.to(x.scalar_type()).t());
    if (layer.bias.defined()) own = own + layer.bias.index_select(0, ids);
    return at::index_copy(scores, -1, ids, own.to(scores.scalar_type()));
  }
};

at::Tensor RowsOfTable::forward(const nn::Embedding& layer, const at::Tensor& ids) {
  const auto base = layer.rows(ids).flatten(0, -2);
  const auto flat = tensor::on_host(ids).flatten(), wanted = row_of_.index_select(0, flat);
  auto trains = wanted.ge(0);
  if (layer.padding_idx() >= 0) trains = trains.logical_and(flat.ne(layer.padding_idx()));
  auto sizes = ids.sizes().vec();
  sizes.push_back(base.size(1));
  const auto put = [&](const at::Tensor& out, const at::Tensor& where, const at::Tensor& rows) {
    const auto here = where.nonzero().flatten(), places = tensor::beside(here, ids);
    const auto chosen = tensor::beside(wanted.index_select(0, here), ids);
    return at::index_copy(out, 0, places, rows.index_select(0, chosen).to(out.scalar_type()));
  };
  const auto out = put(base, trains, rows_);
  if (layer.padding_idx() < 0) return out.view(sizes);
  // As in torch.nn.Embedding, lookups of the padding leave no gradient.
  return put(out, wanted.ge(0).logical_and(flat.eq(layer.padding_idx())), rows_.detach()).view(sizes);
}

at::Tensor RowsOfTable::head_weight(const nn::Embedding& layer) {
  return at::index_copy(layer.weight, 0, tensor::beside(ids_, layer.weight), rows_.to(layer.weight.scalar_type()));
}

}  // namespace

std::string token_rows_name(TokenRowsPlace place) {
  return place == TokenRowsPlace::kAlone ? "trainable_tokens_delta.default"
                                         : "token_adapter.trainable_tokens_delta.default";
}

void attach_token_rows(const Slot& slot, const std::string& head, const std::vector<std::int64_t>& ids,
                       TokenRowsPlace place, const std::string& key) {
  if (slot.linear && slot.name != head) {
    throw ConfigError(
        key + ": '" + slot.name + "' is no embedding and no head; trainable tokens are rows of the token table or head",
        key);
  }
  if (slot.linear && (slot.transposed() || slot.linear->codec())) {
    throw ConfigError(
        key + ": the head '" + slot.name + "' has no rows of tokens (it is packed, or lies transposed); leave it out",
        key);
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
  if (slot.embedding)
    slot.embedding->attach(std::make_shared<RowsOfTable>(slot.weight(), ids, place));
  else
    slot.attach(std::make_shared<RowsOfHead>(slot.weight(), ids, place));
}

at::Tensor with_rows(const at::Tensor& table, const std::vector<std::int64_t>& ids, const at::Tensor& rows) {
  return at::index_copy(table, 0, tensor::beside(to_tensor(ids), table), rows.detach().to(table.scalar_type()));
}

at::Tensor rows_of(const at::Tensor& table, const std::vector<std::int64_t>& ids) {
  return table.index_select(0, to_tensor(ids));
}

}  // namespace tessera::peft
