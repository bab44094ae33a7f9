#include "peft/methods/shared_projection.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/ops/gemm.h"
#include "nn/ops/low_rank.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class Projection : public torch::autograd::Function<Projection> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& a) {
    ctx->save_for_backward({a});
    return nn::low_rank_project(x, a);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {nn::gemm(grads[0].contiguous(), ctx->get_saved_variables()[0]), at::Tensor()};
  }
};

}  // namespace

at::Tensor projection(const at::Tensor& x, const at::Tensor& a) {
  return Projection::apply(x.to(a.scalar_type()), a);
}

at::Tensor SharedProjection::operator()(const at::Tensor& input, const at::Tensor& x, const at::Tensor& a) {
  const auto same = input_.lock();
  if (same && same.get() == input.unsafeGetTensorImpl() && version_ == input._version()) {
    at::Tensor made(made_.lock());
    const bool recorded = at::GradMode::is_enabled() && input.requires_grad();
    if (made.defined() && made.requires_grad() == recorded && made.scalar_type() == a.scalar_type() &&
        made.size(1) == a.size(0))
      return made;
  }
  const auto made = projection(x, a);
  input_ = Weak(input.getIntrusivePtr());
  made_ = Weak(made.getIntrusivePtr());
  version_ = input._version();
  return made;
}

}  // namespace tessera::peft
