#include "optim/device_update.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/device_kernels.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kPiece = 1 << 24;  // elements: what is made on the way takes a few times 64 MiB

/// The parameter, its gradient and its states, in the dtype of the arithmetic; rules write to p and s in place.
struct Piece {
  at::Tensor p, g;
  std::array<at::Tensor, kMaxStates> s;
};

at::Tensor with_decay(const Update& u, const Piece& x) {
  return u.l2 == 0 ? x.g : x.g.add(x.p, u.l2);
}

void blend(const at::Tensor& average, const at::Tensor& value, double beta) {
  average.mul_(beta).add_(value, 1 - beta);
}

void blend_square(const at::Tensor& average, const at::Tensor& value, double beta) {
  average.mul_(beta).addcmul_(value, value, 1 - beta);
}

/// One pass of libtorch's own. Its corrections of the moments are left out, by a step far away: ours are in the rate
/// and in eps, for step_size * m / (sqrt(v) * c + eps) = step_size / c * m / (sqrt(v) + eps / c).
void adam(const Update& u, const Piece& x) {
  const double c = u.inv_sqrt_correction2, rate = u.step_size / c;
  const auto far_away = at::full({}, 1e9, x.p.options().dtype(at::kFloat));
  const auto largest = x.s[2].defined() ? std::vector{x.s[2]} : std::vector<at::Tensor>{};
  if (u.l2 != 0 || rate == 0)
    at::_fused_adam_({x.p}, {x.g}, {x.s[0]}, {x.s[1]}, largest, {far_away}, rate, u.beta1, u.beta2, u.l2, u.eps / c,
                     x.s[2].defined(), /*maximize=*/false);
  else
    at::_fused_adamw_({x.p}, {x.g}, {x.s[0]}, {x.s[1]}, largest, {far_away}, rate, u.beta1, u.beta2,
                      (1 - u.decay) / rate, u.eps / c, x.s[2].defined(), /*maximize=*/false);
}

void sgd(const Update& u, const Piece& x) {
  auto step = with_decay(u, x);
  if (const auto& buffer = x.s[0]; buffer.defined()) {
    buffer.mul_(u.momentum).add_(step, 1 - u.dampening);
    step = u.nesterov ? step.add(buffer, u.momentum) : buffer;
  }
  x.p.sub_(step, u.lr);
}

void lion(const Update& u, const Piece& x) {
  const auto direction = at::sign(x.s[0].mul(u.beta1).add_(x.g, 1 - u.beta1));
  x.p.mul_(u.decay).sub_(direction, u.lr);
  blend(x.s[0], x.g, u.beta2);
}

void rms_prop(const Update& u, const Piece& x) {
  const auto grad = with_decay(u, x);
  blend_square(x.s[0], grad, u.alpha);
  auto variance = x.s[0];
  if (const auto& mean = x.s[1]; mean.defined()) {
    mean.add_(grad.sub(mean), 1 - u.alpha);
    variance = variance.addcmul(mean, mean, -1);
  }
  auto step = grad.div(at::sqrt(variance).add_(u.eps));
  if (const auto& buffer = x.s[2]; buffer.defined()) step = buffer.mul_(u.momentum).add_(step);
  x.p.sub_(step, u.lr);
}

void adagrad(const Update& u, const Piece& x) {
  const auto grad = with_decay(u, x);
  x.s[0].addcmul_(grad, grad);
  x.p.addcdiv_(grad, at::sqrt(x.s[0]).add_(u.eps), -u.lr);
}

void bnb_adam(const Update& u, const Piece& x) {
  blend(x.s[0], x.g, u.beta1);
  blend_square(x.s[1], x.g, u.beta2);
  const auto denominator = at::sqrt(x.s[1]).div_(u.correction2).add_(u.eps);
  x.p.mul_(u.decay).add_(x.s[0].mul(-u.step_size).div_(denominator));
}

void ad_ema_mix(const Update& u, const Piece& x) {
  blend(x.s[0], x.g, u.beta1);
  blend(x.s[1], x.g, u.beta3);
  blend_square(x.s[2], x.g, u.beta2);
  const auto mixed = x.s[0].div(u.correction1).add_(x.s[1], u.alpha);
  const auto denominator = at::sqrt(x.s[2]).div_(u.correction2).add_(u.eps);
  x.p.mul_(u.decay).addcdiv_(mixed, denominator, -u.lr);
}

void bnb_rms_prop(const Update& u, const Piece& x) {
  const auto grad = with_decay(u, x);
  blend_square(x.s[0], grad, u.alpha);
  x.p.add_(grad.mul(-u.lr).div_(at::sqrt(x.s[0]).add_(u.eps)));
}

void torchao_adam(const Update& u, const Piece& x) {
  x.s[0].lerp_(x.g, 1 - u.beta1);
  x.s[1].lerp_(x.g.square(), 1 - u.beta2);
  const auto denominator = at::sqrt(x.s[1]).div_(u.correction2).add_(u.eps);
  x.p.sub_(x.p.mul(u.decay)).sub_(x.s[0].div(u.correction1).mul_(u.lr).div_(denominator));
}

void schedule_free(const Update& u, const Piece& x) {
  const auto& [z, v, none] = x.s;
  auto grad = x.g;
  if (v.defined()) blend_square(v, grad, u.beta2);
  if (u.adaptive) grad = grad.div(at::sqrt(v.div(u.correction2)).add_(u.eps));
  if (u.l2 != 0) grad = grad.add(x.p, u.l2);
  x.p.copy_(at::lerp(x.p, z, u.mix)).add_(grad, u.step_size);
  z.sub_(grad, u.lr);
}

void run(const Update& u, const Piece& x) {
  switch (u.rule) {
    case Rule::kAdam:
      return adam(u, x);
    case Rule::kSgd:
      return sgd(u, x);
    case Rule::kLion:
      return lion(u, x);
    case Rule::kRmsProp:
      return rms_prop(u, x);
    case Rule::kAdagrad:
      return adagrad(u, x);
    case Rule::kScheduleFree:
      return schedule_free(u, x);
    case Rule::kKeep:
      x.s[0].copy_(x.p);
      return;
    case Rule::kAverage:
      x.s[2].copy_(x.p);
      x.p.copy_(at::lerp(x.p, x.s[0], u.mix));
      return;
    case Rule::kTakeBack:
      x.p.copy_(x.s[2]);
      return;
    case Rule::kBnbAdam:
      return bnb_adam(u, x);
    case Rule::kAdEmaMix:
      return ad_ema_mix(u, x);
    case Rule::kBnbRmsProp:
      return bnb_rms_prop(u, x);
    case Rule::kTorchaoAdam:
      return torchao_adam(u, x);
    case Rule::kGrokAdam:  // of an optimizer that runs on the CPU alone
    case Rule::kCustom:
      break;
  }
  throw ConfigError(
      "this optimizer's rule computes on the CPU only, and its parameters lie on another device; set "
      "fsdp_offload_params: true, which keeps them in host memory",
      "optim");
}

/// In one pass of the device's own kernel, where there is one for these.
bool update_by_kernel(const Update& u, const at::Tensor& parameter, const at::Tensor& gradient,
                      const std::array<at::Tensor, kMaxStates>& states) {
  const auto is_float = [](const at::Tensor& t) { return t.defined() && t.scalar_type() == at::kFloat; };
  if (u.rule != Rule::kAdam || states[2].defined() || !is_float(parameter) || !is_float(states[0]) ||
      !is_float(states[1]) || !tensor::has_device_kernels(gradient))
    return false;
  const auto factor = factor_there(u, gradient);
  tensor::launch(&DeviceKernels::adam, "adam", parameter,
                 DeviceAdam{.p = tensor::written_there<float>(parameter),
                            .gradient = tensor::read_there(gradient),
                            .gradient_dtype = tensor::device_dtype(gradient.scalar_type()),
                            .low = nullptr,
                            .low_dtype = kDeviceFloat,
                            .m = tensor::written_there<float>(states[0]),
                            .v = tensor::written_there<float>(states[1]),
                            .numel = parameter.numel(),
                            .factor = tensor::read_there<float>(factor),
                            .beta1 = u.beta1,
                            .beta2 = u.beta2,
                            .eps = u.eps,
                            .decay = u.decay,
                            .step_size = u.step_size,
                            .inv_sqrt_correction2 = u.inv_sqrt_correction2,
                            .l2 = u.l2});
  return true;
}

}  // namespace

void update_on_device(const Update& update, const at::Tensor& parameter, const at::Tensor& gradient,
                      const std::array<at::Tensor, kMaxStates>& states) {
  if (update_by_kernel(update, parameter, gradient, states)) return;
  const auto dtype = parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  for (std::int64_t begin = 0; begin < parameter.numel(); begin += kPiece) {
    const auto count = std::min(kPiece, parameter.numel() - begin);
    const auto here = [&](const at::Tensor& t) { return t.narrow(0, begin, count); };
    Piece piece{here(parameter).to(dtype), here(gradient).to(dtype), {}};
    if (update.gradient_factor != 1) piece.g = piece.g.mul(update.gradient_factor);
    for (std::size_t k = 0; k < states.size(); ++k)
      if (states[k].defined()) piece.s[k] = here(states[k]).to(dtype);
    run(update, piece);
    const auto keep = [&](const at::Tensor& t, const at::Tensor& value) {
      if (t.scalar_type() != dtype) here(t).copy_(value);  // else it was written in place
    };
    keep(parameter, piece.p);
    for (std::size_t k = 0; k < states.size(); ++k)
      if (states[k].defined()) keep(states[k], piece.s[k]);
  }
}

at::Tensor factor_there(const Update& u, const at::Tensor& gradient) {
  if (u.gradient_factor == 1) return {};
  return at::full({1}, u.gradient_factor, gradient.options().dtype(at::kFloat));
}

bool takes_same_step(const Update& a, const Update& b) {
  return a.rule != Rule::kCustom && static_cast<const UpdateScalars&>(a) == b;
}

}  // namespace tessera::optim
