#include "tessera/nn/norm.h"

#include <utility>

#include "nn/ops/layer_norm.h"
#include "nn/ops/rms_norm.h"
#include "tessera/nn/init.h"

namespace tessera::nn {

namespace {

std::string shape_and_eps(std::int64_t dim, double eps) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", eps);
  return "(" + std::to_string(dim) + ",), eps=" + text;
}

}  // namespace

RmsNorm::RmsNorm(std::int64_t dim, double eps, std::string class_name, at::ScalarType dtype, double offset)
    : eps_(eps), class_name_(std::move(class_name)), offset_(offset) {
  weight = register_parameter("weight", make_parameter({dim}, dtype));
}

std::string RmsNorm::extra_repr() const {
  return shape_and_eps(weight.size(0), eps_);
}

at::Tensor RmsNorm::forward_impl(at::Tensor x) {
  return rms_norm(x, weight, eps_, offset_);
}

LayerNorm::LayerNorm(std::int64_t dim, double eps, at::ScalarType dtype, bool affine) : dim_(dim), eps_(eps) {
  if (!affine) return;
  weight = register_parameter("weight", make_parameter({dim}, dtype));
  bias = register_parameter("bias", make_parameter({dim}, dtype));
}

std::string LayerNorm::extra_repr() const {
  return shape_and_eps(dim_, eps_) + ", elementwise_affine=" + (weight.defined() ? "True" : "False");
}

at::Tensor LayerNorm::forward_impl(at::Tensor x) {
  return layer_norm(x, weight, bias, eps_);
}

}  // namespace tessera::nn
