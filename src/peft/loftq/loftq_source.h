#pragma once
// LoftQ (Li et al. 2023) with several iterations: what a base is packed from. Packing W and making good the loss with
// B A take turns: the next packing is of W - B A. PEFT's loftq_init.
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/tensor_table.h"
#include "peft/methods/lora_starts.h"
#include "tessera/tensor/codec.h"

namespace tessera::peft {

/// A source of dense weights, to be packed while they are read, in which the chosen matrices are what the last
/// iteration packs. Until choose() it shows the weights as they are. The factors of a matrix are found when it is read
/// first; every process finds them by itself, with the same bits.
class LoftqSource final : public io::TensorSource {
 public:
  /// iterations: at least 2.
  LoftqSource(std::shared_ptr<const io::TensorSource> dense, std::int64_t iterations);

  struct Matrix {
    std::shared_ptr<const tensor::Codec> codec;  // what it is packed with, as [out, in]
    std::int64_t rank = 0;
    bool transposed = false;  // the source has [in, out]
  };
  /// By the source's names.
  void choose(std::map<std::string, Matrix> matrices) { matrices_ = std::move(matrices); }

  const std::vector<io::TensorInfo>& tensors() const override { return dense_->tensors(); }
  const io::TensorInfo* find(const std::string& name) const override { return dense_->find(name); }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override;
  std::optional<io::MappedTensor> map(const std::string& name) const override;

 private:
  /// B A of the last iteration but one, as the source has the weight.
  at::Tensor update_of(const std::string& name, const Matrix& matrix) const;

  std::shared_ptr<const io::TensorSource> dense_;
  std::int64_t iterations_;
  std::map<std::string, Matrix> matrices_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, LoraStart> factors_;
};

}  // namespace tessera::peft
