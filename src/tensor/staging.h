#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <utility>
#include <vector>

namespace tessera::tensor {

/// What is to be written by the host, into tensors of any device.
///
///   Staging staging;  read(file, staging.host_of(a), staging.host_of(b));  staging.finish();
class Staging {
 public:
  /// Memory of the host with the shape of `target`: its own, or some whose contents finish() copies there.
  at::Tensor host_of(const at::Tensor& target) {
    if (target.is_cpu()) return target;
    auto host = at::empty_like(target, target.options().device(at::kCPU));
    staged_.emplace_back(target, host);
    return host;
  }
  void finish() {
    for (const auto& [target, host] : staged_) target.copy_(host);
    staged_.clear();
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;
};

}  // namespace tessera::tensor
