#pragma once
// Runs a float32 kernel over the rows of tensors of any floating dtype: float32 in place, others through small buffers.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/kernels/row_kernels.h"

namespace tessera::nn {

/// Row kernels that convert in registers take these; others go through float32, or to libtorch.
inline bool is_float_or_bfloat16(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16;
}

/// Elements of work below which another thread costs more than it gives.
constexpr std::int64_t kGrain = 1 << 15;

template <class T>
void read_floats(const T* x, float* y, std::int64_t n) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    kernels::widen(reinterpret_cast<const std::uint16_t*>(x), y, n);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
  }
}

template <class T>
void write_floats(const float* x, T* y, std::int64_t n) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    kernels::narrow(x, reinterpret_cast<std::uint16_t*>(y), n);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(x[i]);
  }
}

/// One row of a tensor as float32: a pointer into it, or a converted copy.
class ReadRow {
 public:
  ReadRow(const at::Tensor& t, std::int64_t n) : t_(t), n_(n) {
    if (t.defined() && t.scalar_type() != at::kFloat) buffer_.resize(n);
  }
  const float* at(std::int64_t begin) {
    if (!t_.defined()) return nullptr;
    if (buffer_.empty()) return t_.const_data_ptr<float>() + begin;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, t_.scalar_type(), "read_row",
                                    [&] { read_floats(t_.const_data_ptr<scalar_t>() + begin, buffer_.data(), n_); });
    return buffer_.data();
  }

 private:
  const at::Tensor& t_;
  std::int64_t n_;
  std::vector<float> buffer_;
};

/// The same for writing: store() after the kernel. at() gives what is to be written whole, load() what is to be
/// changed.
class WriteRow {
 public:
  WriteRow(const at::Tensor& t, std::int64_t n) : t_(t), n_(n) {
    if (t.defined() && t.scalar_type() != at::kFloat) buffer_.resize(n);
  }
  float* at(std::int64_t begin) {
    begin_ = begin;
    if (!t_.defined()) return nullptr;
    return buffer_.empty() ? t_.mutable_data_ptr<float>() + begin : buffer_.data();
  }
  /// Brings the row's first `count` elements; those after them hold anything.
  float* load(std::int64_t begin, std::int64_t count) {
    float* row = at(begin);
    if (buffer_.empty()) return row;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, t_.scalar_type(), "load_row",
                                    [&] { read_floats(t_.const_data_ptr<scalar_t>() + begin, row, count); });
    return row;
  }
  void store() {
    if (buffer_.empty()) return;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, t_.scalar_type(), "write_row", [&] {
      write_floats(buffer_.data(), t_.mutable_data_ptr<scalar_t>() + begin_, n_);
    });
  }

 private:
  const at::Tensor& t_;
  std::int64_t n_, begin_ = 0;
  std::vector<float> buffer_;
};

/// Calls body(first, last) over the rows on this rank's threads; `row_numel` elements of work each.
template <class Body>
void for_rows(std::int64_t rows, std::int64_t row_numel, const Body& body) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, row_numel)), body);
}

}  // namespace tessera::nn
