#include "nn/ops/rotary.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "nn/composite/composite.h"
#include "nn/kernels/rotary_kernels.h"
#include "nn/ops/device.h"
#include "nn/ops/rows.h"
#include "tensor/device_kernels.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Offsets of the heads within one token's row.
std::vector<std::int64_t> head_offsets(const at::Tensor& x) {
  std::vector<std::int64_t> offsets = {0};
  for (std::int64_t dim = 1; dim + 1 < x.dim(); ++dim) {
    std::vector<std::int64_t> next;
    for (auto offset : offsets) {
      for (std::int64_t i = 0; i < x.size(dim); ++i) next.push_back(offset + i * x.stride(dim));
    }
    offsets = std::move(next);
  }
  return offsets;
}

template <class T>
void rotate_rows(const at::Tensor& x, const at::Tensor& y, const RotaryTable& table, float direction) {
  const std::int64_t size = x.size(-1), half = table.cos.size(1), stride = x.stride(0);
  const auto offsets = head_offsets(x);
  const auto heads = static_cast<std::int64_t>(offsets.size());
  const float *cos = table.cos.const_data_ptr<float>(), *sin = table.sin.const_data_ptr<float>();
  const auto* positions = table.positions.const_data_ptr<std::int64_t>();
  const T* from = x.const_data_ptr<T>();
  T* to = y.mutable_data_ptr<T>();
  const auto turn = table.pairs == RotaryPairs::kHalves ? kernels::rotate_halves : kernels::rotate_neighbours;
  for_rows(x.size(0), heads * size, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> buffer(std::is_same_v<T, float> ? 0 : 2 * half);
    for (std::int64_t t = first; t < last; ++t) {
      const float *c = cos + positions[t] * half, *s = sin + positions[t] * half;
      for (std::int64_t h = 0; h < heads; ++h) {
        const T* in = from + t * stride + offsets[h];
        T* out = to + (t * heads + h) * size;
        if constexpr (std::is_same_v<T, float>) {
          turn(in, out, c, s, direction, half);
        } else {
          read_floats(in, buffer.data(), 2 * half);
          turn(buffer.data(), buffer.data(), c, s, direction, half);
          write_floats(buffer.data(), out, 2 * half);
        }
        std::copy(in + 2 * half, in + size, out + 2 * half);
      }
    }
  });
}

at::Tensor rotated_there(const at::Tensor& x_in, const RotaryTable& table, float direction) {
  const auto x = x_in.flatten(1, -2);  // a copy where the heads do not follow each other evenly
  const auto y = at::empty(x_in.sizes(), x_in.options());
  const auto cos = table.cos.contiguous(), sin = table.sin.contiguous(), positions = table.positions.contiguous();
  tensor::launch(&DeviceKernels::rotary, "rotary", x,
                 DeviceRotary{.x = tensor::read_there(x),
                              .y = tensor::written_there(y),
                              .dtype = tensor::device_dtype(x.scalar_type()),
                              .tokens = x.size(0),
                              .heads = x.size(1),
                              .size = x.size(2),
                              .token_stride = x.stride(0),
                              .head_stride = x.stride(1),
                              .cos = tensor::read_there<float>(cos),
                              .sin = tensor::read_there<float>(sin),
                              .positions = tensor::read_there<std::int64_t>(positions),
                              .half = cos.size(1),
                              .neighbours = table.pairs == RotaryPairs::kNeighbours,
                              .direction = direction});
  return y;
}

at::Tensor rotated(const at::Tensor& x, const RotaryTable& table, float direction) {
  if (!has_kernels(x))
    return tensor::has_device_kernels(x) && x.dim() > 2 && x.stride(-1) == 1 ? rotated_there(x, table, direction)
                                                                             : composite::rotated(x, table, direction);
  const auto y = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rotary", [&] {
    if constexpr (!std::is_same_v<scalar_t, double>) rotate_rows<scalar_t>(x, y, table, direction);
  });
  return y;
}

class Rotary : public torch::autograd::Function<Rotary> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const RotaryTable& table) {
    ctx->save_for_backward({table.cos, table.sin, table.positions});
    ctx->saved_data["neighbours"] = table.pairs == RotaryPairs::kNeighbours;
    return {rotated(q, table, 1.0f), rotated(k, table, 1.0f)};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const RotaryTable table{saved[0], saved[1], saved[2],
                            ctx->saved_data["neighbours"].toBool() ? RotaryPairs::kNeighbours : RotaryPairs::kHalves};
    return {rotated(grads[0].contiguous(), table, -1.0f), rotated(grads[1].contiguous(), table, -1.0f), at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table) {
  TESSERA_CHECK(q.size(-1) >= 2 * table.cos.size(1), "a head is smaller than its rotary part");
  auto out = Rotary::apply(q, k, table);
  return {std::move(out[0]), std::move(out[1])};
}

}  // namespace tessera::nn
