#include "optim/low_rank.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "optim/flat_numbers.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::optim {

struct LowRankOptimizer::Matrix {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  std::vector<ParameterSlice> slices;  // of this rank
  Projection projection;
  at::Tensor low;          // the small matrix that low_ steps in; zero between steps
  at::Tensor factor;       // APOLLO, of this step: [rows, 1], [1, columns] or [1, 1]
  at::Tensor scaled_grad;  // APOLLO: float64 [1], the norm of the last step; below 0 before the first
  double limit = 1;        // APOLLO, of this step: on its norm
};

/// The elements of a slice in their rows, zeros beside them.
struct LowRankOptimizer::Rows {
  at::Tensor values;                    // float32 [count, columns]; undefined where there is nothing
  std::int64_t first = 0, skipped = 0;  // elements of the first row that are not the slice's
};

LowRankOptimizer::~LowRankOptimizer() = default;

LowRankOptimizer::LowRankOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                                   const LowRankOptions& options, std::shared_ptr<comm::Communicator> group,
                                   const MakeOptimizer& rest, const MakeOptimizer& low)
    : Optimizer(std::move(parameters), std::move(slices), options.lr), options_(options), group_(std::move(group)) {
  for (const auto& p : parameters_)
    if (p.scalar_type() == at::kDouble)
      throw ConfigError("optim: GaLore and APOLLO work on float32 and 16-bit parameters, found float64", "optim");
  std::vector<ParameterSlice> others;
  add_matrices(others);
  rest_ = rest(parameters_, std::move(others), group_);
  std::vector<at::Tensor> small;
  for (const auto& m : matrices_) small.push_back(m.low);
  low_ = low(small, whole_slices(small), nullptr);
}

// apollo-torch numbers parameters from 1, those that are not projected first.
void LowRankOptimizer::add_matrices(std::vector<ParameterSlice>& others) {
  std::set<std::string> names;
  for (const auto& slice : slices_)
    if (!slice.low_rank) {
      names.insert(slice.name);
      others.push_back(slice);
    }
  auto seed = static_cast<std::int64_t>(names.size());
  for (const auto& slice : slices_) {
    if (!slice.low_rank) continue;
    TESSERA_CHECK(slice.shape.size() == 2, "a low rank is for matrices");
    if (matrices_.empty() || matrices_.back().name != slice.name) {
      Projection projection(options_.projection, slice.shape[0], slice.shape[1], options_.same_seed ? 1 : ++seed);
      auto low = at::zeros(projection.low_shape(), at::kFloat);
      Matrix matrix{slice.name, slice.shape[0], slice.shape[1], {}, std::move(projection), std::move(low), {}, {}};
      if (options_.form != LowRankOptions::Form::kGaLore) matrix.scaled_grad = at::zeros({1}, at::kDouble).sub_(1);
      matrices_.push_back(std::move(matrix));
    }
    if (slice.numel > 0) matrices_.back().slices.push_back(slice);
  }
}

void LowRankOptimizer::keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) {
  offload_ = std::move(offload);
  rest_->keep_state_in(offload_);
}

void LowRankOptimizer::all_reduce(const at::Tensor& t) const {
  if (collective()) group_->all_reduce(t.view(-1), comm::ReduceOp::kSum)->wait();
}

LowRankOptimizer::Rows LowRankOptimizer::rows_of(const ParameterSlice& slice) const {
  const auto& grad = parameters_[static_cast<std::size_t>(slice.parameter)].grad();
  if (!grad.defined()) return {};
  const auto columns = slice.shape[1];
  Rows rows;
  rows.first = slice.offset / columns;
  rows.skipped = slice.offset % columns;
  const auto count = (slice.offset + slice.numel + columns - 1) / columns - rows.first;
  rows.values = at::zeros({count, columns}, at::kFloat);
  auto here = rows.values.view(-1).narrow(0, rows.skipped, slice.numel);
  here.copy_(grad.reshape(-1).narrow(0, slice.parameter_offset, slice.numel));
  if (gradient_factor_ != 1) here.mul_(gradient_factor_);
  return rows;
}

// Singular vectors are found by one rank each, of as many matrices at a time as there are ranks.
void LowRankOptimizer::refresh_projections() {
  const auto world = static_cast<std::size_t>(collective() ? group_->size() : 1);
  const auto me = static_cast<std::size_t>(collective() ? group_->rank() : 0);
  for (std::size_t begin = 0; begin < matrices_.size(); begin += world) {
    const auto end = std::min(matrices_.size(), begin + world);
    at::Tensor mine;
    for (auto i = begin; i < end; ++i) {
      auto& m = matrices_[i];
      m.projection.draw(steps_);
      if (!m.projection.needs_gradient(steps_)) continue;
      const auto whole = at::zeros({m.rows, m.columns}, at::kFloat);
      for (const auto& slice : m.slices)
        if (const auto rows = rows_of(slice); rows.values.defined())
          whole.narrow(0, rows.first, rows.values.size(0)).add_(rows.values);
      all_reduce(whole);
      if (i - begin == me) mine = whole;
    }
    if (mine.defined()) matrices_[begin + me].projection.follow(mine);
    for (auto i = begin; collective() && i < end; ++i) {
      const auto& p = matrices_[i].projection;
      if (!p.needs_gradient(steps_)) continue;
      const auto owner = static_cast<int>(i - begin);
      if (p.projects_left()) group_->broadcast(p.left().view(-1), owner)->wait();
      if (p.projects_right()) group_->broadcast(p.right().view(-1), owner)->wait();
    }
  }
}

void LowRankOptimizer::project() {
  for (auto& m : matrices_) {
    auto low = at::zeros(m.low.sizes(), at::kFloat);
    for (const auto& slice : m.slices)
      if (const auto rows = rows_of(slice); rows.values.defined())
        m.projection.add_projected(rows.values, rows.first, low);
    all_reduce(low);
    m.low.mutable_grad() = std::move(low);
  }
}

namespace {

/// AdamW's bias corrections as factors of its rate.
double corrections(const LowRankOptions& o, std::int64_t steps) {
  const auto t = static_cast<double>(steps);
  return std::sqrt(1 - std::pow(o.beta2, t)) / (1 - std::pow(o.beta1, t));
}

}  // namespace

// low_ has stepped: how long its steps are beside the gradients, and then how much the whole may grow (Fira's limiter).
void LowRankOptimizer::scale_by_steps() {
  constexpr double kGrowth = 1.01, kTiny = 1e-8;
  const auto norms = at::zeros({static_cast<std::int64_t>(matrices_.size())}, at::kDouble);
  auto* squares = norms.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    auto& m = matrices_[i];
    std::vector<std::int64_t> over = {m.rows < m.columns ? 0 : 1};
    if (options_.form == LowRankOptions::Form::kApolloTensor) over = {0, 1};
    const auto steps = at::linalg_vector_norm(m.low, 2, over, /*keepdim=*/true);
    const auto gradients = at::linalg_vector_norm(m.low.grad(), 2, over, /*keepdim=*/true);
    m.factor = steps.div_(corrections(options_, steps_ + 1)).div_(gradients.add_(kTiny));
    for (const auto& slice : m.slices) {
      const auto rows = rows_of(slice);
      if (!rows.values.defined()) continue;
      const bool by_row = m.factor.size(0) > 1;
      rows.values.mul_(by_row ? m.factor.narrow(0, rows.first, rows.values.size(0)) : m.factor);
      const auto norm = at::linalg_vector_norm(rows.values, 2, at::OptionalIntArrayRef(), false, at::kDouble);
      squares[i] += norm.item<double>() * norm.item<double>();
    }
  }
  all_reduce(norms);
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    auto& m = matrices_[i];
    auto& last = *m.scaled_grad.mutable_data_ptr<double>();
    const double norm = std::sqrt(squares[i]);
    m.limit = last < 0 ? 1 : std::max(norm / (last + kTiny), kGrowth) / kGrowth;
    last = norm / m.limit;
  }
}

void LowRankOptimizer::apply(Matrix& m) {
  const bool galore = options_.form == LowRankOptions::Form::kGaLore;
  for (const auto& slice : m.slices) {
    const double rate = lr_ * slice.lr_scale;
    const double decay = 1 - rate * slice.weight_decay.value_or(options_.weight_decay);
    auto rows = rows_of(slice);
    if (!rows.values.defined()) continue;
    if (galore) {
      rows.values = m.projection.expanded(m.low, rows.first, rows.values.size(0)).mul_(rate * options_.scale);
    } else {
      const bool by_row = m.factor.size(0) > 1;
      rows.values.mul_(by_row ? m.factor.narrow(0, rows.first, rows.values.size(0)) : m.factor);
      rows.values.mul_(-rate * corrections(options_, steps_ + 1) * std::sqrt(options_.scale) / m.limit);
    }
    const auto change = rows.values.view(-1).narrow(0, rows.skipped, slice.numel);
    add_to(slice, change, options_.decays_first ? decay : 1, options_.decays_first ? 1 : decay);
  }
}

/// p = (p * before + change) * after
void LowRankOptimizer::add_to(const ParameterSlice& slice, const at::Tensor& change, double before, double after) {
  const auto& flat = parameters_[static_cast<std::size_t>(slice.parameter)];
  const auto* halves = offload_ ? offload_->halves_of(flat) : nullptr;
  const FlatNumbers p{halves ? nullptr : flat.mutable_data_ptr(), flat.scalar_type(), halves};
  const auto* add = change.const_data_ptr<float>();
  const auto first = static_cast<float>(before), last = static_cast<float>(after);
  at::parallel_for(0, slice.numel, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, 1024> buffer;
    for (auto at = begin; at < end; at += std::ssize(buffer)) {
      const auto count = std::min<std::int64_t>(std::ssize(buffer), end - at);
      auto* values = p.read(slice.parameter_offset + at, count, buffer.data());
      for (std::int64_t i = 0; i < count; ++i) values[i] = (values[i] * first + add[at + i]) * last;
      p.write(slice.parameter_offset + at, count, values);
    }
  });
}

void LowRankOptimizer::step() {
  const at::NoGradGuard no_grad;
  refresh_projections();
  project();
  for (auto& m : matrices_) m.low.zero_();
  low_->set_lr(1);
  low_->set_steps(steps_);
  low_->step();
  if (options_.form != LowRankOptions::Form::kGaLore) scale_by_steps();
  for (auto& m : matrices_) {
    apply(m);
    m.low.mutable_grad().reset();
    m.factor = at::Tensor();
  }
  rest_->set_lr(lr_);
  rest_->set_steps(steps_);
  rest_->scale_next_gradients(gradient_factor_);
  rest_->step();
  for (const auto& p : parameters_)
    if (p.grad().defined()) p.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
  gradient_factor_ = 1;
  ++steps_;
}

std::vector<StateSlice> LowRankOptimizer::state() {
  auto result = rest_->state();
  for (auto& s : low_->state()) {
    s.parameter = matrices_[static_cast<std::size_t>(std::stoll(s.parameter))].name;
    s.replicated = true;
    result.push_back(std::move(s));
  }
  const auto add = [&](const Matrix& m, const char* name, const at::Tensor& t) {
    if (t.defined()) result.push_back({m.name, name, t.sizes().vec(), 0, t.view(-1), true});
  };
  for (const auto& m : matrices_) {
    if (!options_.projection.random) {
      add(m, "projection_left", m.projection.left());
      add(m, "projection_right", m.projection.right());
    }
    add(m, "scaled_grad", m.scaled_grad);
  }
  return result;
}

}  // namespace tessera::optim
