#include "tessera/nn/init.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "tensor/rng.h"
#include "tensor/storage.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/linear.h"
#include "tessera/nn/norm.h"

namespace tessera::nn {

at::Tensor make_parameter(at::IntArrayRef sizes, at::ScalarType dtype) {
  return tensor::make_detached(
      sizes, dtype,
      "tessera: this parameter has no values yet; load weights, call nn::reset_parameters(), or "
      "shard the module from a weight file");
}

void allocate(const at::Tensor& parameter) {
  if (!tensor::is_detached(parameter)) return;
  auto memory = at::empty(parameter.sizes(), parameter.options());
  void* data = memory.mutable_data_ptr();
  tensor::attach(parameter, data, std::move(memory));
}

void reset_parameters(torch::nn::Module& module, std::uint64_t seed) {
  const auto reset = [&](const std::string& prefix, torch::nn::Module& m) {
    for (auto& item : m.named_parameters(/*recurse=*/false)) {
      auto values = item.value().detach();
      allocate(values);
      const auto key = tensor::named_key(seed, prefix.empty() ? item.key() : prefix + "." + item.key());
      if (auto* linear = dynamic_cast<Linear*>(&m)) {
        const double bound = 1.0 / std::sqrt(static_cast<double>(linear->in_features()));
        tensor::fill_uniform(values, key, -bound, bound);
      } else if (dynamic_cast<RmsNorm*>(&m) || dynamic_cast<LayerNorm*>(&m)) {
        values.fill_(item.key() == "weight" ? 1 : 0);
      } else {
        tensor::fill_normal(values, key, 0.0, 1.0);
      }
    }
  };
  reset("", module);
  for (auto& child : module.named_modules("", /*include_self=*/false)) reset(child.key(), *child.value());
}

}  // namespace tessera::nn
