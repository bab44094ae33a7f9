#pragma once
// Optimizers over flat 1-D shards: a rank updates the elements it owns, in one pass over memory. Names, shapes and
// offsets of what lies in a shard are given as ParameterSlices; rules that need statistics of a whole parameter
// (Adafactor) sum them over the ranks.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::comm {
class Communicator;
}
namespace tessera::tensor {
class OffloadStore;
}  // namespace tessera::tensor

namespace tessera::optim {

struct Update;

/// One named parameter's part in one of the flat tensors that an optimizer is given. Every trainable parameter has a
/// slice on every rank, in the same order; numel 0 where the rank holds nothing of it.
struct ParameterSlice {
  std::string name;                 // fully qualified
  std::vector<std::int64_t> shape;  // of the whole parameter
  std::int64_t offset = 0;          // of the slice in the flattened parameter
  std::int64_t numel = 0;
  std::int64_t parameter = -1, parameter_offset = 0;  // which flat tensor, and where in it
  double lr_scale = 1.0;                              // this parameter's rate is lr() * lr_scale
  std::optional<double> weight_decay = {};            // unset: the optimizer's
  bool full_state = false;                            // its state keeps 32 bits under 8-bit optimizers: embeddings
  bool low_rank = false;                              // a matrix that GaLore and APOLLO see through a low rank
};

/// What an optimizer remembers of one parameter, as far as it lies on this rank.
struct StateSlice {
  std::string parameter, state;     // "model.norm.weight", "exp_avg"
  std::vector<std::int64_t> shape;  // of the whole state tensor
  std::int64_t offset = 0;          // of `local` in the flattened whole
  at::Tensor local;                 // 1-D, contiguous, aliases the optimizer's memory: write to it to load a checkpoint
  bool replicated = false;          // every rank holds the whole
  std::int64_t repeated = 0;        // so many first elements of `local` another slice holds, too: that one is saved
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Uses each flat parameter's grad(); those without one are skipped. Collective if collective().
  virtual void step() = 0;
  /// step() communicates: all ranks of the group must call it together.
  virtual bool collective() const { return false; }
  /// step() takes parameters on any device (FsdpOptions::state_on), and keeps its state there. Else on the CPU alone:
  /// make_optimizer() then gives one that copies them there and back in each step.
  virtual bool runs_anywhere() const { return false; }
  /// The optimizer that has the rule: this one, or the one that works for it.
  virtual Optimizer& computing() { return *this; }
  /// In the order of the slices, the same on every rank (slices of which a rank holds nothing are listed, empty).
  virtual std::vector<StateSlice> state() = 0;

  /// Before the first step or state(): state tensors as large as the parameters are kept there (null: in memory), and
  /// both they and the parameters are evicted as step() is done with them. Built-in
  /// rules then take masters in halves as well (fsdp: parameters() loses its memory). Small states stay in memory.
  virtual void keep_state_in(std::shared_ptr<tensor::OffloadStore> /*offload*/) {}

  /// True for rules whose result is not what they train: an average of where they were (schedule-free).
  virtual bool averages() const { return false; }
  /// The parameters become that average, for evaluating and saving, or again what is trained, bit for bit. state() says
  /// the same in both. Call FullyShardedDataParallel::mark_updated() after it. No step() between the two.
  virtual void show_average() {}
  virtual void show_trained() {}

  /// The next step() takes `factor` times each gradient, multiplied as it is read: clipping without a pass of its own.
  void scale_next_gradients(double factor) { gradient_factor_ = factor; }

  /// step() calls it, on its thread, for each of parameters() that has its new values before all have: forwards may
  /// then begin with these. Rules that end with all at once call it for none. Null: nobody is told.
  void on_updated(std::function<void(std::size_t parameter)> told) { on_updated_ = std::move(told); }

  void set_lr(double lr) { lr_ = lr; }
  double lr() const { return lr_; }
  void zero_grad();
  /// Finished updates. Bias corrections depend on it: a checkpoint holds it beside state().
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 protected:
  /// ConfigError for flat tensors that are not contiguous and floating, and for slices outside of them.
  Optimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, double lr);
  /// This one of parameters() is as it will be after step().
  void updated(std::size_t parameter) const {
    if (on_updated_) on_updated_(parameter);
  }
  std::vector<at::Tensor> parameters_;
  std::vector<ParameterSlice> slices_;
  double lr_ = 0;
  double gradient_factor_ = 1;  // 1 again after step()
  std::int64_t steps_ = 0;

 private:
  std::function<void(std::size_t)> on_updated_;
};

/// One slice for each tensor, named "0", "1", ...: optimizers of what is not sharded.
std::vector<ParameterSlice> whole_slices(const std::vector<at::Tensor>& parameters);

/// Collective over the group that shares the parameters. Calls visit for every state tensor, whole, in its shape, one
/// at a time, on every rank.
void visit_full_state(
    Optimizer& optimizer, comm::Communicator& group,
    const std::function<void(const std::string& parameter, const std::string& state, const at::Tensor&)>& visit);

/// Rules that treat every element alone.
class FlatOptimizer : public Optimizer {
 public:
  ~FlatOptimizer() override;
  void step() override;
  std::vector<StateSlice> state() override;
  void keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) override;
  bool runs_anywhere() const override { return true; }

 protected:
  /// `states`: names of the state tensors, each like the parameters, zero at first.
  FlatOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, double lr, double weight_decay,
                std::vector<std::string> states);
  /// The scalars of this step (steps() counts it already) at this rate and decay.
  virtual Update update(double lr, double weight_decay) const = 0;
  /// The same for one slice, at its rate and decay; for rules that know more about its parameter.
  virtual Update update_of(const ParameterSlice& slice) const;
  /// State number `state` of flat parameter `flat`, without the elements of wide ranges that no slice has.
  const at::Tensor& state_tensor(std::size_t state, std::size_t flat);
  /// Where the state of a slice's first element is in it.
  std::int64_t state_offset(const ParameterSlice& slice) const;
  /// Fills a state tensor; for rules whose state does not begin at zero.
  void fill_state(std::size_t state, double value);
  /// Before the first step: a dtype for a state that is not the parameters'.
  void keep_state_as(std::size_t state, at::ScalarType dtype);
  /// A state without a name, which is not saved, comes and goes.
  void add_passing_state(std::size_t state);
  void drop_passing_state(std::size_t state);
  /// Runs a rule that reads no gradients over all slices.
  void update_all(const Update& update);

 private:
  void update_parameter(std::size_t flat);
  void allocate_states();
  at::Tensor allocate_state(std::size_t state, std::size_t flat) const;
  void find_ranges();
  void update_anywhere(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars);
  void update_slice(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars);
  Update scalars_of(const ParameterSlice& slice) const;
  bool is_mixed(const ParameterSlice& slice) const;
  void update_elsewhere(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars);
  void update_mixed(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars);
  void update_offloaded(const ParameterSlice& slice, const at::Tensor& grad, const Update& scalars);
  using OffloadAction = void (tensor::OffloadStore::*)(const at::Tensor&) const;
  void for_offloaded(const ParameterSlice& slice, OffloadAction action) const;
  double weight_decay_;
  std::vector<std::string> names_;
  std::vector<double> initial_;                        // by name
  std::vector<std::optional<at::ScalarType>> dtypes_;  // by name; unset: the parameters'
  std::vector<std::vector<at::Tensor>> states_;        // by name and flat parameter; empty until they are needed
  struct Range {
    std::int64_t begin, end, state;  // of elements of the parameter; where their state begins
  };
  std::vector<std::vector<Range>> ranges_;  // of flat parameters, those that have state
  std::shared_ptr<tensor::OffloadStore> offload_;
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  bool amsgrad = false;
  /// Element ranges [begin, end) of parameter i that are not decayed (norm weights, biases).
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> no_decay = {};
};

/// Decoupled weight decay (Loshchilov & Hutter 2019), the update of torch.optim.AdamW. Moments in the parameter's
/// dtype.
class AdamW final : public FlatOptimizer {
 public:
  explicit AdamW(std::vector<at::Tensor> parameters, AdamWOptions options = {});
  AdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, AdamWOptions options);

 private:
  Update update(double lr, double weight_decay) const override;
  AdamWOptions options_;
};

}  // namespace tessera::optim
