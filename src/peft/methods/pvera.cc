#include "peft/methods/pvera.h"

#include <ATen/TensorOperators.h>

#include "base/json_text.h"
#include "nn/ops/device.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/matmul.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/remade.h"
#include "nn/ops/row_noise.h"
#include "tensor/device.h"
#include "tessera/base/error.h"

namespace tessera::peft {

void Pvera::bind(ConfigKeys& keys) {
  Vera::bind(keys);
  keys.flag("sample_at_inference", sample_at_inference);
  keys.any("generator_seed", generator_seed);
}

void Pvera::check() const {
  Vera::check();
  if (!generator_seed.is_null() && !generator_seed.is_number_integer())
    throw ConfigError("generator_seed is a whole number or null, found " + json_text(generator_seed), "generator_seed");
}

tensor::RandomKey Pvera::next_draw(const std::string& layer) const {
  const auto position = tensor::random_state().position;
  const auto key = tensor::next_key();
  if (generator_seed.is_null()) return key;
  return tensor::named_key(generator_seed.get<std::uint64_t>(), layer + " " + std::to_string(position));
}

at::Tensor Pvera::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                         const Tensors& t) const {
  if (!layer.is_training() && !sample_at_inference) return Vera::output(layer, sizes, x, t);
  const auto &b = t[0], &d = t[1];
  const auto a = t[2].narrow(1, 0, sizes.in), wide_b = t[3].narrow(0, 0, sizes.out);
  const double p = layer.is_training() ? vera_dropout : 0;
  return nn::over_rows(x, [&](const at::Tensor& rows) {
    const auto project = [&](const at::Tensor& from) {
      return nn::has_kernels(x) ? projection(from, a) : nn::linear(from.to(a.scalar_type()), a);
    };
    const bool shares = p == 0 && nn::has_kernels(x);
    const auto projected = shares ? (*projection_)(x, rows, a) : project(nn::dropout(rows, p));
    const auto drawn = nn::remade(projected, {d}, [this, sizes](const at::Tensor& u, const Tensors& scales) {
      const auto both = u * scales[0];
      const auto mean = both.narrow(1, 0, r), deviation = (both.narrow(1, r, r) * 0.5).exp();
      const auto noise = nn::row_noise(u.size(0), r, next_draw(sizes.name)).to(u.scalar_type());
      return mean + tensor::beside(noise, u) * deviation;
    });
    return vera_product(rows, layer.handle(), layer.bias, drawn, {}, b, wide_b);
  });
}

}  // namespace tessera::peft
