#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>

#include "base/offloaded_piece.h"
#include "optim/device_update.h"
#include "optim/flat_numbers.h"
#include "tensor/mapped_zeros.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements of a thread

/// Those of one flat parameter, from its first element on.
template <class T>
States<T> states_of(const std::vector<std::vector<at::Tensor>>& by_name, std::size_t flat) {
  States<T> result{};
  for (std::size_t k = 0; k < by_name.size(); ++k)
    if (by_name[k][flat].defined()) result[k] = by_name[k][flat].mutable_data_ptr<T>();
  return result;
}

template <class T>
States<T> from(const States<T>& states, std::int64_t offset) {
  States<T> result{};
  for (std::size_t k = 0; k < kMaxStates; ++k) result[k] = states[k] ? states[k] + offset : nullptr;
  return result;
}

}  // namespace

FlatOptimizer::FlatOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, double lr,
                             double weight_decay, std::vector<std::string> states)
    : Optimizer(std::move(parameters), std::move(slices), lr), weight_decay_(weight_decay), names_(std::move(states)) {
  TESSERA_CHECK(names_.size() <= kMaxStates, "a rule has at most three states");
  initial_.assign(names_.size(), 0.0);
  dtypes_.resize(names_.size());
  find_ranges();
}

/// Narrow gaps between slices, as alignment leaves them, are kept: a whole parameter is one range.
void FlatOptimizer::find_ranges() {
  constexpr std::int64_t kWideGap = 1 << 12;  // elements
  auto sorted = slices_;
  std::erase_if(sorted, [](const auto& slice) { return slice.numel == 0; });
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.parameter_offset < b.parameter_offset; });
  ranges_.resize(parameters_.size());
  for (std::size_t flat = 0; flat < parameters_.size(); ++flat) {
    auto& ranges = ranges_[flat];
    const auto numel = parameters_[flat].numel();
    std::int64_t covered = 0;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      const auto after = ranges.empty() ? 0 : ranges.back().end;
      if (begin - after >= kWideGap || ranges.empty())
        ranges.push_back({begin - after < kWideGap ? after : begin, end, covered});
      ranges.back().end = std::max(end, ranges.back().end);
      covered = ranges.back().state + ranges.back().end - ranges.back().begin;
    };
    for (const auto& slice : sorted)
      if (slice.parameter == static_cast<std::int64_t>(flat))
        add(slice.parameter_offset, slice.parameter_offset + slice.numel);
    if (!ranges.empty() && numel - ranges.back().end < kWideGap) ranges.back().end = numel;
  }
}

std::int64_t FlatOptimizer::state_offset(const ParameterSlice& slice) const {
  for (const auto& range : ranges_[static_cast<std::size_t>(slice.parameter)])
    if (slice.parameter_offset < range.end) return range.state + slice.parameter_offset - range.begin;
  return 0;
}

void FlatOptimizer::keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) {
  TESSERA_CHECK(states_.empty(), "keep_state_in() comes before the first step");
  offload_ = std::move(offload);
  if (offload_) offload_->accept_halves();
}

at::Tensor FlatOptimizer::allocate_state(std::size_t state, std::size_t flat) const {
  const auto& parameter = parameters_[flat];
  const auto& ranges = ranges_[flat];
  const auto dtype = dtypes_[state].value_or(parameter.scalar_type());
  const auto numel = ranges.empty() ? 0 : ranges.back().state + ranges.back().end - ranges.back().begin;
  const auto t = offload_ ? offload_->allocate(numel, dtype) : tensor::lasting_zeros(numel, dtype, parameter.device());
  return numel == parameter.numel() ? t.view_as(parameter) : t;
}

void FlatOptimizer::allocate_states() {
  if (!states_.empty()) return;
  states_.resize(names_.size());
  for (std::size_t s = 0; s < names_.size(); ++s) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto& t = states_[s].emplace_back();
      if (names_[s].empty()) continue;
      t = allocate_state(s, i);
      if (initial_[s] != 0) t.fill_(initial_[s]);
    }
  }
}

void FlatOptimizer::add_passing_state(std::size_t state) {
  allocate_states();
  for (std::size_t i = 0; i < parameters_.size(); ++i) states_[state][i] = allocate_state(state, i);
}

void FlatOptimizer::drop_passing_state(std::size_t state) {
  for (auto& t : states_[state]) t = at::Tensor();
}

FlatOptimizer::~FlatOptimizer() = default;

void FlatOptimizer::fill_state(std::size_t state, double value) {
  initial_[state] = value;
}

void FlatOptimizer::keep_state_as(std::size_t state, at::ScalarType dtype) {
  dtypes_[state] = dtype;
}

void FlatOptimizer::step() {
  at::NoGradGuard no_grad;
  ++steps_;
  allocate_states();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    update_parameter(i);
    updated(i);
  }
  gradient_factor_ = 1;
}

void FlatOptimizer::update_parameter(std::size_t flat) {
  const auto& p = parameters_[flat];
  auto grad = p.grad();
  if (!grad.defined() || p.numel() == 0) return;
  if (grad.scalar_type() != p.scalar_type() || !grad.is_contiguous()) grad = grad.to(p.scalar_type()).contiguous();
  ParameterSlice run{};  // slices that follow each other and take the same step are one launch on a device
  for (const auto& slice : slices_) {
    if (slice.numel == 0 || slice.parameter != static_cast<std::int64_t>(flat)) continue;
    if (!p.is_cpu() && run.numel > 0 && run.parameter_offset + run.numel == slice.parameter_offset &&
        takes_same_step(scalars_of(run), scalars_of(slice))) {
      run.numel += slice.numel;
      continue;
    }
    if (run.numel > 0) update_anywhere(run, grad, scalars_of(run));
    run = slice;
  }
  if (run.numel > 0) update_anywhere(run, grad, scalars_of(run));
  p.unsafeGetTensorImpl()->bump_version();  // the kernel writes behind autograd's back
}

void FlatOptimizer::update_all(const Update& update) {
  at::NoGradGuard no_grad;
  allocate_states();
  for (const auto& slice : slices_) {
    if (slice.numel == 0) continue;
    const auto flat = static_cast<std::size_t>(slice.parameter);
    const auto& any = states_[0][flat];  // numbers of the right dtype, that nobody reads
    update_anywhere(slice, any.numel() == parameters_[flat].numel() ? any : at::zeros_like(parameters_[flat]), update);
    parameters_[flat].unsafeGetTensorImpl()->bump_version();
  }
}

void FlatOptimizer::update_anywhere(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars) {
  offload_ ? update_offloaded(slice, grad, scalars) : update_slice(slice, grad, scalars);
}

Update FlatOptimizer::update_of(const ParameterSlice& slice) const {
  return update(lr_ * slice.lr_scale, slice.weight_decay.value_or(weight_decay_));
}

Update FlatOptimizer::scalars_of(const ParameterSlice& slice) const {
  auto scalars = update_of(slice);
  scalars.gradient_factor *= gradient_factor_;
  return scalars;
}

const at::Tensor& FlatOptimizer::state_tensor(std::size_t state, std::size_t flat) {
  allocate_states();
  return states_[state][flat];
}

/// Not all of one dtype, or parameters in halves.
bool FlatOptimizer::is_mixed(const ParameterSlice& slice) const {
  const auto flat = static_cast<std::size_t>(slice.parameter);
  const auto& parameter = parameters_[flat];
  return (offload_ && offload_->halves_of(parameter)) ||
         std::any_of(states_.begin(), states_.end(), [&](const auto& s) {
           return s[flat].defined() && s[flat].scalar_type() != parameter.scalar_type();
         });
}

void FlatOptimizer::update_slice(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars) {
  const auto& parameter = parameters_[static_cast<std::size_t>(slice.parameter)];
  if (!parameter.is_cpu()) return update_elsewhere(slice, grad, scalars);
  if (is_mixed(slice)) return update_mixed(slice, grad, scalars);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, parameter.scalar_type(), "optimizer", [&] {
    auto* p = parameter.mutable_data_ptr<scalar_t>() + slice.parameter_offset;
    const auto* g = grad.const_data_ptr<scalar_t>() + slice.parameter_offset;
    const auto s = states_of<scalar_t>(states_, static_cast<std::size_t>(slice.parameter));
    at::parallel_for(0, slice.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      update_range(scalars, end - begin, p + begin, g + begin, from(s, state_offset(slice) + begin));
    });
  });
}

/// On the device where the parameter lies.
void FlatOptimizer::update_elsewhere(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars) {
  const auto flat = static_cast<std::size_t>(slice.parameter);
  const auto range = [&](const at::Tensor& t, std::int64_t begin) {
    return t.detach().view(-1).narrow(0, begin, slice.numel);
  };
  std::array<at::Tensor, kMaxStates> states;
  for (std::size_t k = 0; k < states_.size(); ++k)
    if (states_[k][flat].defined()) states[k] = range(states_[k][flat], state_offset(slice));
  update_on_device(scalars, range(parameters_[flat], slice.parameter_offset), range(grad, slice.parameter_offset),
                   states);
}

/// Through blocks of float32 that stay in the first cache.
void FlatOptimizer::update_mixed(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars) {
  const auto flat = static_cast<std::size_t>(slice.parameter);
  const auto& parameter = parameters_[flat];
  const auto* halves = offload_ ? offload_->halves_of(parameter) : nullptr;
  const FlatNumbers p{halves ? nullptr : parameter.mutable_data_ptr(), parameter.scalar_type(), halves};
  const FlatNumbers g{const_cast<void*>(grad.const_data_ptr()), grad.scalar_type()};
  std::array<FlatNumbers, kMaxStates> s;
  for (std::size_t k = 0; k < states_.size(); ++k)
    if (const auto& t = states_[k][flat]; t.defined()) s[k] = {t.mutable_data_ptr(), t.scalar_type()};
  const auto first = slice.parameter_offset, to_state = state_offset(slice) - first;
  at::parallel_for(first, first + slice.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBlock = 512;  // as far as is fetched ahead (update.cc)
    alignas(64) std::array<std::array<float, kBlock>, kMaxStates + 2> blocks;
    for (auto at = begin; at < end; at += kBlock) {
      const auto count = std::min(kBlock, end - at);
      States<float> states{};
      for (std::size_t k = 0; k < kMaxStates; ++k)
        if (s[k].data) states[k] = s[k].read(at + to_state, count, blocks[k].data());
      auto* values = p.read(at, count, blocks[kMaxStates].data());
      update_range(scalars, count, values, g.read(at, count, blocks[kMaxStates + 1].data()), states);
      p.write(at, count, values);
      for (std::size_t k = 0; k < kMaxStates; ++k)
        if (s[k].data) s[k].write(at + to_state, count, states[k]);
    }
  });
}

// Piece by piece, the next one on its way, so that not even a large slice is in memory whole.
void FlatOptimizer::update_offloaded(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars) {
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    auto result = slice;
    begin = std::max<std::int64_t>(begin, 0);
    result.parameter_offset += begin;
    result.numel = std::max<std::int64_t>(std::min(end, slice.numel) - begin, 0);
    return result;
  };
  constexpr std::int64_t kPage = 4096;  // elements, at least a page of them: the one that a piece shares with the last
  for_offloaded(part(0, kOffloadedPiece), &tensor::OffloadStore::fetch);
  for (std::int64_t begin = 0; begin < slice.numel; begin += kOffloadedPiece) {
    const auto end = begin + kOffloadedPiece;
    for_offloaded(part(end, end + kOffloadedPiece), &tensor::OffloadStore::fetch);
    update_slice(part(begin, end), grad, scalars);
    for_offloaded(part(begin - kPage, end), &tensor::OffloadStore::evict);
  }
}

void FlatOptimizer::for_offloaded(const ParameterSlice& slice, OffloadAction action) const {
  const auto flat = static_cast<std::size_t>(slice.parameter);
  if (slice.numel == 0) return;
  const auto range = [&](const at::Tensor& t, std::int64_t begin) {
    return t.detach().view(-1).narrow(0, begin, slice.numel);
  };
  ((*offload_).*action)(range(parameters_[flat], slice.parameter_offset));
  for (const auto& state : states_)
    if (state[flat].defined()) ((*offload_).*action)(range(state[flat], state_offset(slice)));
}

std::vector<StateSlice> FlatOptimizer::state() {
  allocate_states();
  std::vector<StateSlice> result;
  for (std::size_t first = 0; first < slices_.size();) {
    auto last = first;  // the parts of one parameter stay together
    while (last < slices_.size() && slices_[last].name == slices_[first].name) ++last;
    for (std::size_t k = 0; k < names_.size(); ++k) {
      if (names_[k].empty()) continue;
      for (auto i = first; i < last; ++i) {
        const auto& slice = slices_[i];
        const auto flat = static_cast<std::size_t>(std::max<std::int64_t>(slice.parameter, 0));
        const auto& whole = states_[k].at(flat);
        result.push_back({slice.name, names_[k], slice.shape, slice.offset,
                          whole.view(-1).narrow(0, slice.numel > 0 ? state_offset(slice) : 0, slice.numel), false});
      }
    }
    first = last;
  }
  return result;
}

}  // namespace tessera::optim
