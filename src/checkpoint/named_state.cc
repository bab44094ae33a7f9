#include "checkpoint/named_state.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

/// The parts of a state tensor that lies like the flat parameter `number`, from its element state.offset on.
std::vector<optim::StateSlice> parts_of(const optim::StateSlice& state, std::int64_t number,
                                        const std::vector<optim::ParameterSlice>& slices) {
  std::vector<optim::StateSlice> parts;
  const auto first = state.offset, last = state.offset + state.local.numel();
  for (const auto& slice : slices) {
    if (slice.parameter != number) continue;
    const auto begin = std::max(first, slice.parameter_offset);
    const auto end = std::min(last, slice.parameter_offset + slice.numel);
    if (begin >= end) continue;
    parts.push_back({.parameter = slice.name,
                     .state = state.state,
                     .shape = slice.shape,
                     .offset = slice.offset + begin - slice.parameter_offset,
                     .local = state.local.narrow(0, begin - first, end - begin)});
  }
  return parts;
}

/// Its elements are those of the flat parameter with this number.
bool lies_like_parameter(const optim::StateSlice& state, const fsdp::FullyShardedDataParallel& model) {
  const auto number = static_cast<std::size_t>(std::stoll(state.parameter));
  return !state.replicated && c10::multiply_integers(state.shape) == model.parameters()[number].numel();
}

}  // namespace

std::vector<optim::StateSlice> named_state(const fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer) {
  const auto slices = fsdp::parameter_slices(model);
  std::set<std::string> names;
  for (const auto& slice : slices) names.insert(slice.name);
  std::set<std::string> numbers;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) numbers.insert(std::to_string(i));

  std::vector<optim::StateSlice> result;
  for (auto& state : optimizer.state()) {
    if (names.contains(state.parameter)) {
      result.push_back(std::move(state));
    } else if (numbers.contains(state.parameter) && lies_like_parameter(state, model)) {
      for (auto& part : parts_of(state, std::stoll(state.parameter), slices)) result.push_back(std::move(part));
    } else {
      throw ConfigError("the optimizer keeps '" + state.state + "' of '" + state.parameter +
                        "', which is no trainable parameter of the model; make it with "
                        "fsdp::parameter_slices(model)");
    }
  }
  return result;
}

}  // namespace tessera::checkpoint
