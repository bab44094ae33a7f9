#pragma once
// Optimizers whose states are kept in few bits, in blocks of a parameter's elements (state_codec.h): those of
// bitsandbytes and of torchao. Parameters that the codec does not pack, and all without a codec, have states in
// float32.
//
// Parameters on another device have their states there, to within rounding with the same values (device_blocks.h).
//
// Blocks belong to parameters and not to slices: where several slices hold parts of a block they agree on its scale
// (shared_blocks.h), so any number of ranks has the values of one.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/device_blocks.h"
#include "optim/shared_blocks.h"
#include "optim/state_codec.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

struct FlatNumbers;

struct BlockOptions {
  double lr = 1e-3, weight_decay = 0;
  std::shared_ptr<const StateCodec> codec = bnb_state_codec();  // null: all states are float32
};

/// A state of the rule, as files keep it: one of `parts` that lie one after the other in state 1, or in state 2.
struct BlockState {
  int number = 1;
  std::int64_t part = 0, parts = 1;
  bool with_signs = true;  // of the codec's table
};

class BlockOptimizer : public Optimizer {
 public:
  ~BlockOptimizer() override;
  void step() override;
  bool runs_anywhere() const override { return true; }
  bool collective() const override { return group_ && group_->size() > 1 && options_.codec; }
  /// As the codec names them: float32 like the parameter, or codes (uint8; like the parameter, or where two share a
  /// byte in a row), and with codes a scale for each block and the table of values.
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
    std::array<at::Tensor, kMaxStates> values;  // bytes of codes, or float32
    std::array<at::Tensor, kMaxStates> scales;  // of the blocks that the slice has elements of
  };
  /// The CPU's memory of states in codes, from a range's first element on.
  struct Memory {
    std::array<std::uint8_t*, kMaxStates> bytes{};
    std::array<float*, kMaxStates> scales{};
  };
  /// A copy, there, of a part of a block that lies on a device and that several slices hold.
  struct Mirror {
    at::Tensor parameter, gradient;
    std::array<at::Tensor, kMaxStates> bytes, scales;
  };
  /// On a device: whole blocks of one slice or of several that lie one behind the other, or states in float32.
  struct Run {
    bool packed = false;
    Update update;
    at::Tensor parameter, gradient;
    std::array<at::Tensor, kMaxStates> values = {}, scales = {};
  };
  void allocate();
  Update update_of(const ParameterSlice& slice) const;
  void update_slice(std::size_t index, const FlatNumbers& p, const FlatNumbers& g);
  void update_offloaded(std::size_t index, const FlatNumbers& p, const FlatNumbers& g);
  void update_range_of(std::size_t index, const FlatNumbers& p, const FlatNumbers& g, std::int64_t first,
                       std::int64_t last);
  void update_block(const Update& scalars, std::size_t index, const FlatNumbers& p, const FlatNumbers& g,
                    std::int64_t at, const BlockRange& range);
  void encode_shared();
  Memory memory_of(std::size_t index, const BlockRange& range);
  void decode_codes(std::size_t state, const BlockRange& range, const Memory& memory, float* out) const;
  void encode_codes(std::size_t state, BlockRange range, const Memory& memory, const float* values) const;
  void update_there(std::size_t flat, const at::Tensor& gradient);
  Run run_of(std::size_t index, const at::Tensor& gradient);
  bool continues(const Run& next, const Run& run) const;
  void update_run(const Run& run) const;
  void update_shared_there(const std::vector<at::Tensor>& gradients);
  std::int64_t values_in_byte(std::size_t index) const;
  std::int64_t place_of(std::size_t index, std::int64_t element) const;
  void check_tables();
  void for_offloaded(std::size_t index, std::int64_t begin, std::int64_t end,
                     void (tensor::OffloadStore::*action)(const at::Tensor&) const) const;

  BlockOptions options_;
  Blocks blocks_;
  std::vector<BlockState> states_;
  std::shared_ptr<comm::Communicator> group_;
  std::vector<Part> parts_;  // of the slices; empty until they are needed
  std::array<at::Tensor, 2> tables_;
  std::optional<SharedBlocks> shared_;
  std::vector<Mirror> mirrors_;        // on a device, in a step: of shared_'s parts
  std::optional<DeviceBlocks> there_;  // on a device, with a codec
  std::shared_ptr<tensor::OffloadStore> offload_;
};

}  // namespace tessera::optim
