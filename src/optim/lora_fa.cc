#include "optim/lora_fa.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>

#include <algorithm>

#include "optim/flat_numbers.h"
#include "optim/step_scalars.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

float rounded(float x) {
  return static_cast<float>(c10::BFloat16(x));
}

/// Element `column` of row * inverse * scale, rounded where autocast rounds; sums in order, so that bits do not depend
/// on how many rows there are.
float projected(const RowProjection& p, const float* row, std::int64_t column) {
  float sum = 0;
  for (std::int64_t k = 0; k < p.rank; ++k)
    sum += rounded(row[k]) * rounded(p.inverse[static_cast<std::size_t>(k * p.rank + column)]);
  return rounded(rounded(sum) * p.scale);
}

}  // namespace

LoraFa::LoraFa(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const LoraFaOptions& options,
               std::shared_ptr<comm::Communicator> group)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                    {"exp_avg", "exp_avg_sq"}),
      options_(options),
      group_(std::move(group)) {}

Update LoraFa::update(double lr, double weight_decay) const {
  const auto& o = options_;
  return hf_adamw_update(
      {.steps = steps_, .lr = lr, .weight_decay = weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps});
}

const RowProjection* LoraFa::projection_of(const ParameterSlice& slice) const {
  const auto found = projections_.find(slice.name);
  return found == projections_.end() ? nullptr : &found->second;
}

void LoraFa::find_split_rows() {
  found_ = true;
  const auto key = [&](const SplitRow& r) { return slices_[r.slice].name + '@' + std::to_string(r.row); };
  std::string mine;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const auto* p = projection_of(slices_[i]);
    if (!p || slices_[i].numel == 0) continue;
    widest_ = std::max(widest_, p->rank);
    const auto begin = slices_[i].offset, end = begin + slices_[i].numel;
    for (const auto row : {begin / p->rank, (end - 1) / p->rank}) {
      SplitRow split{i, 0, row, std::max(begin, row * p->rank), std::min(end, (row + 1) * p->rank)};
      if (split.end - split.begin == p->rank) continue;
      if (!split_rows_.empty() && split_rows_.back().slice == i && split_rows_.back().row == row) continue;
      mine += key(split) + '\n';
      split_rows_.push_back(split);
    }
  }
  std::map<std::string, std::size_t> slots;
  for (const auto& keys : collective() ? group_->all_gather_objects(mine) : std::vector<std::string>{mine})
    for (std::size_t at = 0; at < keys.size();) {
      const auto end = keys.find('\n', at);
      slots.emplace(keys.substr(at, end - at), 0);
      at = end + 1;
    }
  for (auto& [name, slot] : slots) slot = static_cast<std::size_t>(slots_++);
  for (auto& split : split_rows_) split.slot = slots.at(key(split));
  for (const auto& [name, p] : projections_) widest_ = std::max(widest_, p.rank);
}

void LoraFa::step() {
  const at::NoGradGuard no_grad;
  if (!found_) find_split_rows();
  project();
  FlatOptimizer::step();
}

void LoraFa::project() {
  const auto gradients = [&](const ParameterSlice& slice) {
    const auto& p = parameters_[static_cast<std::size_t>(slice.parameter)];
    if (p.grad().defined() && (p.grad().scalar_type() != at::kFloat || !p.grad().is_contiguous()))
      p.mutable_grad() = p.grad().to(at::kFloat).contiguous();
    return p.grad().defined() ? p.grad().mutable_data_ptr<float>() + slice.parameter_offset - slice.offset : nullptr;
  };
  auto rows = at::zeros({slots_, widest_}, at::kFloat);
  auto* split = rows.mutable_data_ptr<float>();
  for (const auto& r : split_rows_) {
    const auto& slice = slices_[r.slice];
    const auto* g = gradients(slice);
    const auto rank = projection_of(slice)->rank;
    for (auto i = r.begin; g && i < r.end; ++i) split[static_cast<std::int64_t>(r.slot) * widest_ + i % rank] = g[i];
  }
  if (collective() && slots_ > 0) group_->all_reduce(rows.view(-1), comm::ReduceOp::kSum)->wait();
  for (const auto& r : split_rows_) {
    const auto* p = projection_of(slices_[r.slice]);
    auto* g = gradients(slices_[r.slice]);
    const auto* row = split + static_cast<std::int64_t>(r.slot) * widest_;
    for (auto i = r.begin; g && i < r.end; ++i) g[i] = projected(*p, row, i % p->rank);
  }
  std::vector<float> row;
  for (const auto& slice : slices_) {
    const auto* p = projection_of(slice);
    auto* g = p && slice.numel > 0 ? gradients(slice) : nullptr;
    if (!g) continue;
    const auto first = (slice.offset + p->rank - 1) / p->rank, last = (slice.offset + slice.numel) / p->rank;
    for (auto r = first; r < last; ++r) {
      auto* here = g + r * p->rank;
      row.assign(here, here + p->rank);
      for (std::int64_t c = 0; c < p->rank; ++c) here[c] = projected(*p, row.data(), c);
    }
  }
}

}  // namespace tessera::optim
