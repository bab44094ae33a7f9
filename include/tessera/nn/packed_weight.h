#pragma once
// A packed matrix in the module tree: beside a layer's "weight", which holds the codes, a child "weight" whose
// parameters are the statistics, so that these are named as in bitsandbytes' files ("...q_proj.weight.absmax").
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>

#include "tessera/tensor/codec.h"

namespace tessera::nn {

class PackedWeight final : public torch::nn::Module {
 public:
  /// weight: the layer's registered parameter, of any dtype; it becomes the codes, frozen. A weight with values is
  /// packed; one without memory gives fields without memory.
  PackedWeight(std::shared_ptr<const tensor::Codec> codec, at::Tensor weight);

  const std::shared_ptr<const tensor::PackedMatrix>& matrix() const { return matrix_; }

 private:
  std::shared_ptr<const tensor::PackedMatrix> matrix_;
};

/// How many elements the parameters below a module stand for: packed codes for all of their matrix's, statistics for
/// none, others for their own.
class DenseElements {
 public:
  explicit DenseElements(const torch::nn::Module& root);
  std::int64_t of(const std::string& name, const at::Tensor& parameter) const;

 private:
  std::map<std::string, std::int64_t> packed_;
};

}  // namespace tessera::nn
