#pragma once
// Masters in float32 of what computes in bfloat16, held as the copy for the computation and the bits that it lacks
// (tensor/split_floats.h): 4 bytes an element where a master beside the copy takes 6.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/offload_store.h"
#include "tensor/split_floats.h"

namespace tessera::fsdp {

/// The master of one slice. Whole at first: `leaf` has memory. Once an optimizer has said that it takes halves,
/// divide() leaves `leaf` without, and join() gives it back for a while.
class SplitMaster {
 public:
  /// values: float32, what leaf() has at first. high: this rank's slice of the copy for the computation, bfloat16.
  SplitMaster(at::Tensor values, at::Tensor high);

  const at::Tensor& leaf() const { return leaf_; }
  /// The leaf's memory, while it has some. Who holds it has the values longer: a save may read them while the next step
  /// computes.
  const at::Tensor& values() const { return values_; }
  void accept_halves() { accepted_ = true; }
  /// To be divided at the next publication although nothing was written: it never was.
  bool undivided() const { return accepted_ && !halves_.low.defined(); }
  /// nullptr while the leaf has memory: what is written there counts.
  const tensor::SplitFloats* halves() const { return values_.defined() ? nullptr : &halves_; }

  /// Brings the leaf's values to where the computation reads them.
  void divide();
  void join();
  /// Takes the leaf's memory away again, unless it was written to since join().
  void settle();
  std::int64_t bytes() const;  // beside the copy for the computation

 private:
  bool read_only() const;
  void give_memory(at::Tensor values);
  void take_memory_away();
  at::Tensor leaf_, values_;
  tensor::SplitFloats halves_;
  bool accepted_ = false;
  std::uint32_t joined_version_ = 0;
};

/// Optimizer state in memory, parameters in halves.
class SplitMasters final : public tensor::OffloadStore {
 public:
  explicit SplitMasters(std::vector<std::shared_ptr<SplitMaster>> masters) : masters_(std::move(masters)) {}
  at::Tensor allocate(std::int64_t numel, at::ScalarType dtype) override;
  void fetch(const at::Tensor&) const override {}
  void evict(const at::Tensor&) const override {}
  std::int64_t held_bytes() const override { return 0; }
  void accept_halves() override;
  const tensor::SplitFloats* halves_of(const at::Tensor& parameter) const override;

 private:
  std::vector<std::shared_ptr<SplitMaster>> masters_;
};

}  // namespace tessera::fsdp
