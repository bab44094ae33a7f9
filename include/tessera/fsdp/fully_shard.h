#pragma once
// Fully sharded data parallelism (ZeRO-3) for modules that derive from nn::Block. After fully_shard() each rank keeps
// only its slice of every parameter; units are gathered for their forward and backward and released after.
//
//   auto world = tessera::comm::connect();
//   MyModel model;
//   auto sharded = tessera::fsdp::fully_shard(model, world, {.wrap = tessera::fsdp::wrap_classes({"MyBlock"})});
//   tessera::optim::AdamW optimizer(sharded->parameters(), {.lr = 1e-3});
//   loss.backward();  sharded->clip_grad_norm(1.0);  optimizer.step();  optimizer.zero_grad();
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/nn/block.h"
#include "tessera/optim/optimizer.h"

namespace tessera::io {
class TensorSource;
}
namespace tessera::tensor {
class OffloadStore;
}

namespace tessera::fsdp {

/// Hybrid: sharded inside a group of ranks, replicated across groups; with Zero2 units stay gathered until backward.
enum class ShardingStrategy { kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2 };
enum class BackwardPrefetch { kNone, kPre, kPost };

/// How a unit's parameters become readable. kAuto: mapped where a frozen parameter's file allows it, else shared where
/// the ranks share memory, else copy.
enum class GatherForm { kAuto, kCopy, kShared, kMapped };

enum class StateOn { kHost, kDevice };

/// Unset means: not cast. Trainable parameters keep a master copy in their stored dtype, sharded.
struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype = {};
  std::optional<at::ScalarType> reduce_dtype = {};
  std::optional<at::ScalarType> buffer_dtype = {};
  std::optional<at::ScalarType> output_dtype = {};  // of the root
  bool cast_forward_inputs = true;                  // floating inputs of every unit to param_dtype
};

/// True: this module becomes a unit. `name` is its fully qualified name; the root is always a unit.
using WrapPolicy = std::function<bool(const std::string& name, const nn::HookedModule& module)>;
WrapPolicy wrap_none();
/// TRANSFORMER_BASED_WRAP. ConfigError at fully_shard() when a class matches no module (names the classes there are).
WrapPolicy wrap_classes(std::vector<std::string> class_names);
/// For activation_checkpointing: every unit but the root and units inside others. (accelerate's
/// fsdp_activation_checkpointing, which takes the modules of its wrap policy.)
WrapPolicy same_as_wrap();
/// Of what `policy` chooses, in registration order, the first of every n: recompute only each n-th block.
WrapPolicy every_nth(std::int64_t n, WrapPolicy policy);
/// SIZE_BASED_WRAP: bottom-up, a module whose parameters outside units below it have at least this many elements. 0:
/// none.
WrapPolicy wrap_size(std::int64_t min_num_params);
/// PEFT's policy: leaves with a trainable weight, and these classes.
WrapPolicy wrap_peft(std::vector<std::string> class_names);

/// Modules by their fully qualified name.
using ModuleFilter = std::function<bool(const std::string& name, const torch::nn::Module& module)>;
/// Regular expression (ECMAScript) that the whole name must match. ConfigError where it is malformed.
ModuleFilter named_like(const std::string& pattern);

struct FsdpOptions {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  /// Ranks that share one copy under a hybrid strategy, neighbours by rank; the world is a multiple of it. 0: the ranks
  /// of a host, of which every host must then have as many.
  int shard_group_size = 0;
  WrapPolicy wrap = wrap_none();
  MixedPrecision precision = {};
  GatherForm gather = GatherForm::kAuto;
  /// When backward starts the gather of the unit that it needs next (whose forward ended before). kPre: before it
  /// computes the present one, which hides the gather behind that computation and takes the memory of one more unit;
  /// kPost: after it, when that memory is free; kNone: when it is needed. Only where gathers copy (GatherForm::kCopy,
  /// several ranks; to a device) or read a disk (offload_folder): elsewhere nothing is started ahead, no memory taken.
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  /// Forward starts the next unit's gather, by the order of the last forward, before it computes the present one: the
  /// same, for the same memory.
  bool forward_prefetch = true;
  /// Gathers that are started ahead and not yet used: beyond, a prefetch is left out. (torch's limit_all_gathers is 2.)
  int max_gathers_in_flight = 2;
  /// Modules whose activations backward computes again (inside their units: no gather more). Null: as the modules are
  /// set (nn::set_checkpointing). ConfigError for a class that matches nothing.
  WrapPolicy activation_checkpointing = nullptr;
  /// These modules and all below them are left as they are: no units, no casts, their parameters whole on every rank
  /// and readable at any time. What trains in them is trained like all else: gradients are averaged, masters and
  /// optimizer state sharded; after an optimizer step the next forward of the root brings the new values. ConfigError
  /// where a filter is given and matches nothing, or the root.
  ModuleFilter ignored_modules = nullptr;
  /// Initial values: read by name, each rank only its ranges (mapped: none); buffers too, whole. Parameters that the
  /// source lacks, or all when it is null, take the values they hold now, which must be the same on every rank, or
  /// param_init_fn's.
  std::shared_ptr<const io::TensorSource> source = nullptr;
  /// Called with the name of a parameter that has no memory and that the source lacks, when its unit is sharded: gives
  /// it memory (nn::allocate) and values, the same on every rank. No more than a unit is ever whole this way. DataError
  /// where it does not.
  std::function<void(const std::string&, const at::Tensor&)> param_init_fn = nullptr;
  /// What the source lacks, and all buffers, take rank 0's values instead; other ranks' parameters may have no memory.
  bool sync_module_states = false;
  /// Compares what every rank runs before each forward and backward of a unit (a collective each): an Error names the
  /// ranks and the units where they part. accelerate's `debug`.
  bool check_order = false;
  /// A folder on a disk. Parameters, masters and (through offload_store()) optimizer state lie in memory-mapped files
  /// there, units leave memory when they are released. Empty: all stays in memory.
  std::string offload_folder = {};
  /// What computes. Another device than the CPU (CUDA, or any that libtorch knows) gets copies of a unit's parameters
  /// while the unit is gathered, the module's buffers, and the inputs of the root's forward. The modules' parameters
  /// become tensors of the device. Without an index: the thread's current device. ConfigError where there is none.
  at::Device device = at::kCPU;
  /// Where slices, masters, gradients and optimizer state lie when `device` is not the CPU. kHost: in host memory, and
  /// gathers and reductions are the host's (PyTorch's CPUOffload). kDevice: on `device`, nothing is moved in a step.
  /// ConfigError for several ranks, and beside offload_folder or a gather form.
  StateOn state_on = StateOn::kHost;
  /// Frozen parameters that are saved: they keep the values and dtypes that they were read with, beside those that are
  /// computed with. Null: all frozen ones are kept in the compute dtype alone.
  std::function<bool(const std::string&)> keeps_frozen = nullptr;
  /// Parameter name -> name in the source; identity if empty. An empty result means: not in the source.
  std::function<std::string(const std::string&)> source_name = nullptr;
};

/// One parameter's part on this rank.
struct ShardView {
  std::string name;                   // fully qualified
  std::string unit;                   // that gathers it; "": the root
  std::vector<std::int64_t> shape;    // of the whole parameter
  at::ScalarType dtype = at::kFloat;  // that visit_full() brings: stored if trainable or kept, else compute
  std::int64_t offset = 0;            // first element of `local` in the flattened parameter
  at::Tensor local;                   // 1-D view into a flat shard; empty where this rank has none of it
  at::Tensor grad;                    // 1-D view, or undefined
  bool trainable = false;
  bool packed = false;  // codes or statistics (tessera/tensor/codec.h): a file takes them bit for bit, in this dtype
  /// Of a trainable one that has elements here: local is parameters()[parameter], from parameter_offset on. Else -1.
  std::int64_t parameter = -1, parameter_offset = 0;
};

/// Of the module: statistics of a BatchNorm, tables. Whole on every rank, and each rank's own.
struct NamedBuffer {
  std::string name;  // fully qualified
  at::Tensor tensor;
};

/// Bytes, by class, that this runtime holds on this rank now (regions count this rank's share).
struct MemoryStats {
  std::int64_t shard_bytes = 0, gathered_bytes = 0, peak_gathered_bytes = 0, gradient_shard_bytes = 0,
               gradient_buffer_bytes = 0, mapped_bytes = 0;
  std::int64_t offloaded_bytes = 0;  // files that this rank holds mapped, optimizer state included
  /// Of gathered units on FsdpOptions::device, and of slices and gradients that stay there; 0 on the CPU.
  std::int64_t device_bytes = 0, peak_device_bytes = 0;
};
/// Collectives since construction: gathers count units (fences in the shared form too), reductions likewise.
struct CommStats {
  std::int64_t gathers = 0, gathered_numel = 0, gathered_bytes = 0, reductions = 0, reduced_numel = 0;
};

class FullyShardedDataParallel {
 public:
  virtual ~FullyShardedDataParallel() = default;

  /// 1-D sharded leaves, one for each trainable segment: give them to an optimizer. After backward their grad() holds
  /// the average over ranks (or the sum, see set_gradient_divisor). Order and sizes are the same on every rank. Where
  /// param_dtype is bfloat16 and an optimizer was told to keep_state_in(offload_store()), they have no memory of their
  /// own from the next forward on: a master is then the bfloat16 value that units compute with and the bits that it
  /// lacks. On FsdpOptions::device with StateOn::kDevice, else on the CPU; shards() too.
  virtual std::vector<at::Tensor> parameters() const = 0;
  /// Every parameter's part on this rank, in registration order. `local` of trainable ones aliases parameters(), which
  /// have memory until the next forward or visit_full(); what is written there afterwards is lost, what is read are the
  /// old values.
  virtual std::vector<ShardView> shards() const = 0;

  /// Gradients are summed and divided by this; default: the world size.
  virtual void set_gradient_divisor(double divisor) = 0;
  /// While false, backward keeps unsharded gradients and does not communicate; the next synchronising backward adds
  /// them. Where units compute in 16 bits: alike on every rank, else that backward throws CommError.
  virtual void set_requires_gradient_sync(bool sync) = 0;
  /// Each of a step's backward passes had better synchronise: gradients leave the device that computes for slots in
  /// memory that all ranks share, and are summed there, while it goes on; whole ones are added up while it waits.
  virtual bool syncs_beside_computation() const = 0;
  /// Collective. Global p-norm of the gradients (p = 1, 2, any, infinity); scales them by min(1, max_norm / (norm +
  /// 1e-6)). Returns the norm before scaling, the same bits on every rank. max_norm infinite: only measures.
  virtual double clip_grad_norm(double max_norm, double p = 2.0) = 0;
  /// The same, but leaves the scaling to the optimizer's next step(), which reads them anyway.
  virtual double clip_grad_norm(double max_norm, optim::Optimizer& optimizer, double p = 2.0) = 0;
  /// Gradients of backward passes that did not synchronise, too. The module's own zero_grad() does the same for what
  /// lies below it.
  virtual void zero_grad() = 0;
  /// optimizer.step() and zero_grad(). Collective if the optimizer is. Where units compute on a device with copies of
  /// slices in host memory, an optimizer over parameters() that does not communicate steps in a thread of its own while
  /// the next forward computes: a unit waits for its own part, each backward and all calls here for the whole. Until
  /// finish_step() the optimizer must live, and nobody else may use it or the gradients; it throws what the step has
  /// thrown.
  virtual void step(optim::Optimizer& optimizer) = 0;
  virtual void finish_step() = 0;
  /// Collective. After writing to shards() other than through an optimizer over parameters(), on any rank: the next
  /// forward sees the new values.
  virtual void mark_updated() = 0;

  /// Collective. Calls visit(name, tensor) for every parameter, whole, one unit at a time (memory: one unit); `tensor`
  /// is valid only during the call, and defined on every rank. Trainable ones come in their stored dtype (from the
  /// masters). `wanted` (all if null) must answer the same on every rank; units without a wanted parameter are not
  /// gathered.
  virtual void visit_full(const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit,
                          const std::function<bool(const std::string& name)>& wanted = nullptr) = 0;
  /// Collective. Calls change(name, tensor) for every trainable parameter, whole, one unit at a time, and what it
  /// writes to `tensor` becomes the parameter: alike on every rank, because each keeps what lies in its slice. The next
  /// forward sees it.
  virtual void update_full(const std::function<void(const std::string& name, const at::Tensor& tensor)>& change) = 0;
  /// visit_full() for gradients of trainable parameters (after backward).
  virtual void visit_full_grads(
      const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit) = 0;
  /// Collective. Whole tensors laid out like parameters() (for example optimizer state: 1-D, one for each segment).
  virtual void visit_full_of(const std::vector<at::Tensor>& like_parameters,
                             const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit) = 0;

  /// The module's own, in registration order, each once. A rank's batches alone change its statistics, as in PyTorch;
  /// what is saved for use elsewhere are those of rank 0.
  virtual std::vector<NamedBuffer> buffers() const = 0;
  /// Where optimizer state shall lie (optim::Optimizer::keep_state_in()), and how masters may; null: in memory, whole.
  virtual std::shared_ptr<tensor::OffloadStore> offload_store() const = 0;

  virtual MemoryStats memory() const = 0;
  virtual CommStats comm_stats() const = 0;
  /// For messages: "forward of unit 'model.layers.0'", or the like; what this rank does now, or did last.
  virtual std::string activity() const = 0;
  /// The module tree as PyTorch prints it, with units, their shard sizes, dtypes and gather forms.
  virtual std::string to_string() const = 0;
  virtual comm::Communicator& group() const = 0;
  /// The ranks that hold the slices of one copy of the model: alone under kNoShard, a part under hybrid. Optimizers sum
  /// statistics over it.
  virtual std::shared_ptr<comm::Communicator> shard_group() const = 0;
  /// Which copy of the model this rank holds a part of, from 0; the copies are equal bit for bit, so that replica 0
  /// alone need write a checkpoint. Always 0 unless the strategy is kNoShard or hybrid.
  virtual int replica() const = 0;
};

/// The trainable parameters, as parameters() holds them on this rank: for optim::make_optimizer().
std::vector<optim::ParameterSlice> parameter_slices(const FullyShardedDataParallel& model);

/// Collective. The module must outlive the result and keep its structure. requires_grad decides what trains: set it
/// before. What trains may be frozen and unfrozen afterwards, alike on all ranks and a unit at a time: its slices then
/// get no gradients, and optimizers pass them over. ConfigError for a policy that matches nothing, and where ranks
/// built different models (it names the first difference); DataError for missing or misshapen tensors of the source,
/// and where ranks' sources hold other values.
std::unique_ptr<FullyShardedDataParallel> fully_shard(nn::HookedModule& root, std::shared_ptr<comm::Communicator> group,
                                                      FsdpOptions options);

/// no_sync() as a scope.
class NoSync {
 public:
  explicit NoSync(FullyShardedDataParallel& f) : f_(f) { f_.set_requires_gradient_sync(false); }
  ~NoSync() { f_.set_requires_gradient_sync(true); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  FullyShardedDataParallel& f_;
};

}  // namespace tessera::fsdp
