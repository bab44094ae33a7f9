#include "nn/ops/sums.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/kernels/row_kernels.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/device.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Others are left to libtorch's operators. Of small tensors a node of our own costs more than the passes that it
/// saves.
bool has_sum_loops(const at::Tensor& a) {
  return has_kernels(a) && a.numel() >= kGrain && is_float_or_bfloat16(a.scalar_type());
}
bool have_sum_loops(const at::Tensor& a, const at::Tensor& b) {
  return has_sum_loops(a) && b.is_cpu() && a.scalar_type() == b.scalar_type();
}

constexpr std::int64_t kAddedBlock = 2048;  // elements, which stay in the first cache from one addend to the next

template <class T>
void add_up(const variable_list& addends, const at::Tensor& sum) {
  auto* to = static_cast<T*>(sum.mutable_data_ptr());
  const auto from = [&](std::size_t k) { return static_cast<const T*>(addends[k].const_data_ptr()); };
  const std::int64_t n = sum.numel();
  for_rows((n + kAddedBlock - 1) / kAddedBlock, kAddedBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) {
      const auto begin = block * kAddedBlock, count = std::min(kAddedBlock, n - begin);
      kernels::add(from(0) + begin, from(1) + begin, to + begin, count);
      for (std::size_t k = 2; k < addends.size(); ++k) kernels::add(to + begin, from(k) + begin, to + begin, count);
    }
  });
}

/// ((a + b) + c) and so on, each sum rounded.
at::Tensor sum_of(variable_list addends) {
  bool all_have = true;
  for (const auto& addend : addends)
    all_have = all_have && have_sum_loops(addends[0], addend) && addend.sizes() == addends[0].sizes();
  auto sum = addends[0];
  if (!all_have) {
    for (std::size_t k = 1; k < addends.size(); ++k) sum = at::add(sum, addends[k]);
  } else if (addends.size() > 1) {
    for (auto& addend : addends) addend = addend.contiguous();
    sum = at::empty_like(addends[0]);
    (sum.scalar_type() == at::kFloat ? add_up<float> : add_up<std::uint16_t>)(addends, sum);
  }
  return sum;
}

template <class T>
void add_row(const at::Tensor& a, const at::Tensor& row, const at::Tensor& sum) {
  const auto *from = static_cast<const T*>(a.const_data_ptr()), *b = static_cast<const T*>(row.const_data_ptr());
  auto* to = static_cast<T*>(sum.mutable_data_ptr());
  const std::int64_t n = a.size(1);
  for_rows(a.size(0), n, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) kernels::add(from + i * n, b, to + i * n, n);
  });
}

class PlusRow : public torch::autograd::Function<PlusRow> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& a_in, const at::Tensor& b) {
    const auto a = a_in.contiguous(), row = b.contiguous(), sum = at::empty_like(a);
    (a.scalar_type() == at::kFloat ? add_row<float> : add_row<std::uint16_t>)(a, row, sum);
    return sum;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {grads[0], ctx->needs_input_grad(1) ? column_sums(grads[0].contiguous()) : at::Tensor()};
  }
};

class Plus : public torch::autograd::Function<Plus> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& a, const at::Tensor& b) { return sum_of({a, b}); }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], grads[0]}; }
};

class ForReaders : public torch::autograd::Function<ForReaders> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t count) {
    ctx->set_materialize_grads(false);
    return variable_list(static_cast<std::size_t>(count), x);
  }
  static variable_list backward(AutogradContext*, variable_list grads) {
    variable_list given;
    for (auto g = grads.rbegin(); g != grads.rend(); ++g)
      if (g->defined()) given.push_back(std::move(*g));
    return {given.empty() ? at::Tensor() : sum_of(std::move(given)), at::Tensor()};
  }
};

}  // namespace

at::Tensor plus(const at::Tensor& a, const at::Tensor& b) {
  if (have_sum_loops(a, b)) {
    if (a.sizes() == b.sizes()) return Plus::apply(a, b);
    if (a.dim() == 2 && b.dim() == 1 && a.size(1) == b.size(0)) return PlusRow::apply(a, b);
  }
  return at::add(a, b);
}

std::vector<at::Tensor> for_readers(const at::Tensor& x, std::size_t count) {
  if (!at::GradMode::is_enabled() || !x.requires_grad() || !has_sum_loops(x)) return std::vector<at::Tensor>(count, x);
  return ForReaders::apply(x, static_cast<std::int64_t>(count));
}

}  // namespace tessera::nn
