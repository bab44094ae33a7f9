#include "tessera/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "tensor/gradient_place.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::optim {
namespace {

void check_slice(const ParameterSlice& slice, const std::vector<at::Tensor>& parameters) {
  if (slice.numel == 0) return;
  const auto whole = c10::multiply_integers(slice.shape);
  const bool known = slice.parameter >= 0 && slice.parameter < static_cast<std::int64_t>(parameters.size());
  const auto flat = known ? parameters[static_cast<std::size_t>(slice.parameter)].numel() : 0;
  const auto inside = [](std::int64_t begin, std::int64_t count, std::int64_t size) {
    return begin >= 0 && count >= 0 && begin <= size - count;
  };
  if (!inside(slice.parameter_offset, slice.numel, flat) || !inside(slice.offset, slice.numel, whole))
    throw ConfigError("optimizer: slice '" + slice.name + "' of " + std::to_string(slice.numel) +
                      " elements does not fit: it begins at " + std::to_string(slice.parameter_offset) +
                      " of flat parameter " + std::to_string(slice.parameter) + " with " + std::to_string(flat) +
                      " elements and at " + std::to_string(slice.offset) + " of a parameter with " +
                      std::to_string(whole));
}

}  // namespace

Optimizer::Optimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, double lr)
    : parameters_(std::move(parameters)), slices_(std::move(slices)), lr_(lr) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!parameters_[i].is_contiguous() || !at::isFloatingType(parameters_[i].scalar_type()))
      throw ConfigError("optimizer: parameter " + std::to_string(i) + " must be contiguous and floating, found dtype " +
                        c10::toString(parameters_[i].scalar_type()));
  for (const auto& p : parameters_)
    if (tensor::has_gradient_place(p))
      throw ConfigError(
          "optimizer: these are the parameters of a sharded module, which get no gradients: give it "
          "parameters() of the FullyShardedDataParallel, and parameter_slices()");
  for (const auto& slice : slices_) check_slice(slice, parameters_);
}

void Optimizer::zero_grad() {
  for (auto& p : parameters_) p.mutable_grad().reset();
}

std::vector<ParameterSlice> whole_slices(const std::vector<at::Tensor>& parameters) {
  std::vector<ParameterSlice> slices;
  for (const auto& p : parameters) {
    auto& s = slices.emplace_back();
    s.parameter = static_cast<std::int64_t>(slices.size()) - 1;
    s.name = std::to_string(s.parameter);
    s.shape = p.sizes().vec();
    s.numel = p.numel();
  }
  return slices;
}

void visit_full_state(
    Optimizer& optimizer, comm::Communicator& group,
    const std::function<void(const std::string& parameter, const std::string& state, const at::Tensor&)>& visit) {
  at::NoGradGuard no_grad;
  const auto slices = optimizer.state();
  for (std::size_t i = 0; i < slices.size();) {
    const auto& first = slices[i];
    const auto dtype = first.local.scalar_type();
    auto whole = first.replicated ? first.local.clone()
                                  : at::zeros({c10::multiply_integers(first.shape)},
                                              at::isFloatingType(dtype) ? dtype : at::kFloat);  // what can be summed
    for (; i < slices.size() && slices[i].parameter == first.parameter && slices[i].state == first.state; ++i) {
      const auto kept = slices[i].local.numel() - slices[i].repeated;
      if (!first.replicated)
        whole.narrow(0, slices[i].offset + slices[i].repeated, kept)
            .copy_(slices[i].local.narrow(0, slices[i].repeated, kept));
    }
    if (!first.replicated && group.size() > 1) group.all_reduce(whole, comm::ReduceOp::kSum)->wait();
    visit(first.parameter, first.state, whole.to(dtype).view(first.shape));
  }
}

}  // namespace tessera::optim
