#pragma once
// Optimizers of bitsandbytes (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022): states in codes
// of eight bits, each block of 256 elements of a parameter scaled by its largest magnitude (absmax). Parameters of
// fewer than min_8bit_size elements, and slices with full_state, keep states in float32; with 32 bits all do.
//
// Blocks belong to parameters and not to slices: where several slices hold parts of a block they agree on its absmax
// (shared_blocks.h), so any number of ranks has the values of one.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/shared_blocks.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

struct FlatNumbers;

struct BlockOptions {
  double lr = 1e-3, weight_decay = 0;
  int bits = 8;  // or 32
  std::int64_t min_8bit_size = 4096;
};

/// A state of the rule, as bitsandbytes keeps it: one of `parts` that lie one after the other in state1, or in state2.
struct BlockState {
  int number = 1;
  std::int64_t part = 0, parts = 1;
  bool with_signs = true;  // of the dynamic map
};

class BlockOptimizer : public Optimizer {
 public:
  ~BlockOptimizer() override;
  void step() override;
  bool collective() const override { return group_ && group_->size() > 1 && options_.bits == 8; }
  /// state1, state2: float32 like the parameter, or codes; with codes also absmax1, absmax2, a value for each block,
  /// and qmap1, qmap2, the values that codes stand for.
  std::vector<StateSlice> state() override;
  void keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) override;

 protected:
  /// ConfigError for float64 parameters. `group`: as in make_optimizer().
  BlockOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const BlockOptions& options,
                 std::vector<BlockState> states, std::shared_ptr<comm::Communicator> group);
  /// The scalars of this step (steps() counts it already) at this rate and decay.
  virtual Update update(double lr, double weight_decay) const = 0;

 private:
  /// States of one slice, 1-D.
  struct Part {
    bool packed = false;
    std::array<at::Tensor, kMaxStates> values;  // codes or float32
    std::array<at::Tensor, kMaxStates> absmax;  // of the blocks that the slice has elements of
  };
  void allocate();
  void update_slice(std::size_t index, const FlatNumbers& p, const FlatNumbers& g);
  void update_offloaded(std::size_t index, const FlatNumbers& p, const FlatNumbers& g);
  void update_range_of(std::size_t index, const FlatNumbers& p, const FlatNumbers& g, std::int64_t first,
                       std::int64_t last);
  void update_block(const Update& scalars, std::size_t index, const FlatNumbers& p, const FlatNumbers& g,
                    const BlockRange& range);
  void encode_shared();
  void check_maps();
  void for_offloaded(std::size_t index, std::int64_t begin, std::int64_t end,
                     void (tensor::OffloadStore::*action)(const at::Tensor&) const) const;

  BlockOptions options_;
  std::vector<BlockState> states_;
  std::shared_ptr<comm::Communicator> group_;
  std::vector<Part> parts_;  // of the slices; empty until they are needed
  std::array<at::Tensor, 2> maps_;
  std::optional<SharedBlocks> shared_;
  std::shared_ptr<tensor::OffloadStore> offload_;
};

}  // namespace tessera::optim
