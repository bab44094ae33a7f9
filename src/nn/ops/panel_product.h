#pragma once
// The product of a layer whose weight gains a matrix D that is a map of the elements of a token and is made of few
// numbers: y gains x D^T by that map, 64 tokens at a time (nn/kernels/token_panels.h), and D itself is not made.
#include <torch/custom_class.h>

#include <cstdint>
#include <vector>

#include "tessera/nn/weight.h"

namespace tessera::nn {

/// Panels of one thread, which are used again once nobody has them: new memory would cost as much as what is computed.
class PanelPool {
 public:
  /// [rows, 64], float32, of any values.
  at::Tensor panel(std::int64_t rows);

 private:
  std::vector<at::Tensor> panels_;
};

/// D = A M B, where M is linear in the numbers. Panels are [n, 64] and float32. Several threads may call at once, each
/// with its own pool.
class PanelDelta : public torch::CustomClassHolder {
 public:
  /// What M is made of, once for a call of the layer.
  virtual at::Tensor prepared(const at::Tensor& numbers) const = 0;
  /// x: [in, 64]. What M is applied to, B x.
  virtual at::Tensor from_input(const at::Tensor& x, PanelPool& pool) const = 0;
  /// A M `inputs`, [out, 64].
  virtual at::Tensor output(const at::Tensor& prepared, const at::Tensor& inputs, PanelPool& pool) const = 0;
  /// g: [out, 64], the gradient of the output. Of what M gives, A^T g.
  virtual at::Tensor from_gradient(const at::Tensor& g, PanelPool& pool) const = 0;
  /// B^T M^T `gradients`, [in, 64].
  virtual at::Tensor input_gradient(const at::Tensor& prepared, const at::Tensor& gradients, PanelPool& pool) const = 0;
  /// Zeros, to which add_gradient() adds what each panel gives, in their order.
  virtual at::Tensor no_gradient(const at::Tensor& numbers) const = 0;
  virtual void add_gradient(const at::Tensor& inputs, const at::Tensor& gradients, const at::Tensor& sums) const = 0;
  /// Of the numbers, float32, from these sums.
  virtual at::Tensor gradient(const at::Tensor& sums) const = 0;
};
using PanelDeltaPtr = c10::intrusive_ptr<PanelDelta>;

/// x W^T + bias + x D^T as one node on the CPU; x: [..., in], W frozen. Keeps x alone. Computes D's part in float32,
/// with the same bits for any number of threads.
at::Tensor panel_product(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const at::Tensor& numbers,
                         const PanelDeltaPtr& delta);

}  // namespace tessera::nn
