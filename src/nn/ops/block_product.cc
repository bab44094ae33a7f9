#include "nn/ops/block_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "nn/kernels/block_kernels.h"
#include "nn/ops/device.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kRows = 8;  // at a time, so that a block is read once for all of them

/// Rows of a tensor of any floating dtype as float32, some at a time.
class FloatRows {
 public:
  explicit FloatRows(const at::Tensor& t) : t_(t), columns_(t.size(1)) {
    if (t.scalar_type() != at::kFloat) buffer_.resize(static_cast<std::size_t>(kRows * columns_));
  }
  /// Whole rows to read.
  const float* read(std::int64_t row, std::int64_t count) {
    if (buffer_.empty()) return t_.const_data_ptr<float>() + row * columns_;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, t_.scalar_type(), "float_rows", [&] {
      read_floats(t_.const_data_ptr<scalar_t>() + row * columns_, buffer_.data(), count * columns_);
    });
    return buffer_.data();
  }
  /// Where to write them; written() follows.
  float* place(std::int64_t row) {
    return buffer_.empty() ? t_.mutable_data_ptr<float>() + row * columns_ : buffer_.data();
  }
  void written(std::int64_t row, std::int64_t count) {
    if (buffer_.empty()) return;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, t_.scalar_type(), "float_rows", [&] {
      write_floats(buffer_.data(), t_.mutable_data_ptr<scalar_t>() + row * columns_, count * columns_);
    });
  }

 private:
  const at::Tensor& t_;
  std::int64_t columns_;
  std::vector<float> buffer_;
};

/// blocks: float32, contiguous.
at::Tensor product(const at::Tensor& x, const at::Tensor& blocks) {
  const auto y = at::empty_like(x);
  const auto size = blocks.size(1);
  for_rows(x.size(0), x.size(1) * size, [&](std::int64_t begin, std::int64_t end) {
    FloatRows from(x), to(y);
    for (auto row = begin; row < end; row += kRows) {
      const auto count = std::min(kRows, end - row);
      kernels::block_product(from.read(row, count), blocks.const_data_ptr<float>(), to.place(row),
                             {count, x.size(1), blocks.size(0), size});
      to.written(row, count);
    }
  });
  return y;
}

/// [count, size, size] float32. In the order of rows, whatever the number of threads.
at::Tensor gradient(const at::Tensor& x, const at::Tensor& g, std::int64_t size) {
  const auto columns = x.size(1);
  const auto sums = at::zeros({columns / size, size, size}, x.options().dtype(at::kFloat));
  FloatRows of_x(x), of_g(g);
  for (std::int64_t row = 0; row < x.size(0); row += kRows) {
    const auto count = std::min(kRows, x.size(0) - row);
    kernels::block_gradient(of_x.read(row, count), of_g.read(row, count), sums.mutable_data_ptr<float>(),
                            {count, columns, columns / size, size});
  }
  return sums;
}

class BlockProduct : public torch::autograd::Function<BlockProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& blocks) {
    ctx->save_for_backward({x, blocks});
    return product(x, blocks.to(at::kFloat).contiguous());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto &x = saved[0], &blocks = saved[1];
    at::Tensor gx, gb;
    if (ctx->needs_input_grad(0)) gx = product(g, blocks.to(at::kFloat).transpose(1, 2).contiguous());
    if (ctx->needs_input_grad(1)) gb = gradient(x, g, blocks.size(1)).to(blocks.scalar_type());
    return {gx, gb};
  }
};

}  // namespace

at::Tensor block_product(const at::Tensor& x, const at::Tensor& blocks) {
  if (has_kernels(x)) return BlockProduct::apply(x.contiguous(), blocks);
  const auto by_block = x.reshape({-1, blocks.size(0), blocks.size(1)}).transpose(0, 1);
  return at::bmm(by_block, blocks).transpose(0, 1).reshape(x.sizes());
}

}  // namespace tessera::nn
