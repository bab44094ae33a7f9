#include "tensor/generators.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <mutex>

#include "tessera/tensor/random.h"

namespace tessera {

void manual_seed(std::uint64_t seed, std::uint64_t stream) {
  tensor::manual_seed(seed, stream);
  at::manual_seed(seed + stream);
}

namespace tensor {
namespace {

/// By the name of its device's type; an undefined one where there is no such device.
at::Generator generator_of(const std::string& type) {
  if (type == "cpu") return at::globalContext().defaultGenerator(at::kCPU);
  const auto accelerator = at::getAccelerator(/*checked=*/false);
  if (!accelerator || c10::DeviceTypeName(*accelerator, /*lower_case=*/true) != type) return {};
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(accelerator);
  return hooks.deviceCount() > 0 ? hooks.getDefaultGenerator(hooks.getCurrentDevice()) : at::Generator();
}

}  // namespace

GeneratorStates GeneratorStates::now() {
  GeneratorStates out;
  const auto add = [&](const std::string& type) {
    auto generator = generator_of(type);
    if (!generator.defined()) return;
    const std::lock_guard lock(generator.mutex());
    out.states_.emplace(type, generator.get_state());
  };
  add("cpu");
  if (const auto accelerator = at::getAccelerator(false)) add(c10::DeviceTypeName(*accelerator, true));
  return out;
}

void GeneratorStates::restore() const {
  for (const auto& [type, state] : states_) {
    auto generator = generator_of(type);
    if (!generator.defined()) continue;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

bool GeneratorStates::operator==(const GeneratorStates& other) const {
  return std::equal(states_.begin(), states_.end(), other.states_.begin(), other.states_.end(),
                    [](const auto& a, const auto& b) { return a.first == b.first && at::equal(a.second, b.second); });
}

RandomGuard::~RandomGuard() {
  if (!(generators_ == GeneratorStates::now())) generators_.restore();
}

}  // namespace tensor
}  // namespace tessera
