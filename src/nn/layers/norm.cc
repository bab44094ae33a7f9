#include "tessera/nn/norm.h"

#include <ATen/ops/layer_norm.h>

#include <utility>

#include "nn/ops/remake.h"
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
  auto y = at::layer_norm(x, {dim_}, weight, bias, eps_);
  if (y.is_cpu() && at::GradMode::is_enabled()) {
    const auto copy = [](const at::Tensor& t) { return t.defined() ? t.detach().clone() : t; };
    set_recipe(y, {x}, [dim = dim_, w = copy(weight), b = copy(bias), eps = eps_](const auto& sources) {
      return at::layer_norm(sources[0], {dim}, w, b, eps);
    });
  }
  return y;
}

}  // namespace tessera::nn
