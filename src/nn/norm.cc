#include "tessera/nn/norm.h"

#include <utility>

#include "nn/rms_norm.h"
#include "tessera/nn/init.h"

namespace tessera::nn {

RmsNorm::RmsNorm(std::int64_t dim, double eps, std::string class_name, at::ScalarType dtype)
    : eps_(eps), class_name_(std::move(class_name)) {
  weight = register_parameter("weight", make_parameter({dim}, dtype));
}

std::string RmsNorm::extra_repr() const {
  char eps[32];
  std::snprintf(eps, sizeof eps, "%g", eps_);
  return "(" + std::to_string(weight.size(0)) + ",), eps=" + eps;
}

at::Tensor RmsNorm::forward_impl(at::Tensor x) {
  return rms_norm(x, weight, eps_);
}

}  // namespace tessera::nn
