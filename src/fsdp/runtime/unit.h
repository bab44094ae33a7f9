#pragma once
// One unit: parameters that are gathered and released together.
//
// Note [Life of a unit]
//   sharded -> gathering -> whole -> (forward) -> sharded -> gathering -> whole -> (backward) -> reduced -> sharded
// Autograd's saved tensors alias the parameters' storages and read them when backward runs, so refilling the storages
// before is enough. A hook on the outputs runs first in backward, an identity node on the inputs last; the sweep at the
// end of backward reaches units that have neither. A released storage throws when it is read.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/params/device_copy.h"
#include "fsdp/params/parameter_store.h"
#include "fsdp/plan/flat_layout.h"
#include "fsdp/runtime/backward_hooks.h"
#include "tensor/file_pages.h"
#include "tensor/span.h"
#include "tessera/nn/block.h"

namespace tessera::fsdp {

class Runtime;

class Unit final : public nn::ForwardHooks, public std::enable_shared_from_this<Unit> {
 public:
  Unit(Runtime& runtime, int index, std::string name, nn::HookedModule* module, std::vector<UnitParameter> parameters,
       std::vector<Segment> segments, std::unique_ptr<ParameterStore> store);
  ~Unit() override;

  void before_forward(const std::vector<at::Tensor*>& inputs) override;
  void after_forward(const std::vector<at::Tensor*>& outputs) override;
  void abort_forward() noexcept override;

  void zero_grad() override;
  void module_destroyed() noexcept override;

  /// In every unit.
  void begin_backward();
  void pre_backward(const BackwardTicket& ticket);
  void post_backward(BackwardTicket& ticket);
  /// The end of a backward, in every unit.
  void end_backward();

  void prefetch();  // starts the gather
  void gather();
  void release();
  /// Offloaded: out of memory until it is read again.
  void evict();
  /// Offloaded: what the disk has of it is on its way from here on.
  void fetch();
  /// Shows its slices to the peers, who see them after the next fence.
  void publish();
  /// Of a unit that is never released: gathers again what optimizers have written since.
  void refresh();
  /// Hands the module's storages over and attaches hooks; after the shards are filled.
  void activate();

  bool gathering() const { return state_ == State::kGathering; }
  /// There are forwards whose backward may come.
  bool awaits_backward() const { return *open_forwards_ > 0 || *kept_forwards_ > 0; }
  /// Something of it was brought ahead, and it has not run.
  bool ahead() const { return gathering() || (state_ == State::kSharded && fetched_); }
  /// DataError where a weight file could not be read any more while somebody computed with it.
  void check_files() const { file_pages_->check(); }
  int index() const { return index_; }
  const std::string& name() const { return name_; }
  /// For people.
  const char* shown_name() const { return name_.empty() ? "(root)" : name_.c_str(); }
  /// Null: it was destroyed, or there is none.
  nn::HookedModule* module() const { return module_; }
  /// Holds the parameters of ignored modules: always gathered, in no forward's way.
  bool ignored() const { return ignored_; }
  const std::vector<UnitParameter>& parameters() const { return parameters_; }
  const std::vector<Segment>& segments() const { return segments_; }
  ParameterStore& store() const { return *store_; }

 private:
  enum class State { kSharded, kGathering, kWhole };
  bool stale() const;
  void attach();
  void release_host();
  void drop();  // what release() does where it does something
  void detach(const char* why) noexcept;
  void hook_gradients();
  void leave_forward(bool keep);
  void check_what_trains() const;
  std::uint64_t written() const;

  Runtime& runtime_;
  int index_;
  std::string name_;
  nn::HookedModule* module_;
  const bool ignored_;
  std::vector<UnitParameter> parameters_;
  std::vector<Segment> segments_;
  std::unique_ptr<ParameterStore> store_;
  std::shared_ptr<const tensor::FilePages> file_pages_;  // of what is mapped
  std::unique_ptr<DeviceCopy> copy_;                     // null: the store's memory is read where it lies
  State state_ = State::kSharded;
  bool pinned_;               // never released
  bool fetched_ = false;      // since the last evict()
  int forwards_ = 0;          // running now (a module may call itself)
  bool leaving_ = false;      // a forward has ended, and its memory is given back
  bool in_backward_ = false;  // between pre- and post-backward
  /// This backward may come through graphs that had one before: who knows what is its last in the unit?
  bool repeats_ = false;
  /// See BackwardTicket.
  PendingCount pending_ = std::make_shared<std::int64_t>(0), open_forwards_ = std::make_shared<std::int64_t>(0),
               kept_forwards_ = std::make_shared<std::int64_t>(0);
  std::vector<TicketPtr> tickets_;      // of the running forwards; null under no_grad
  std::vector<std::uint64_t> written_;  // what written() was when they began
  std::vector<std::unique_ptr<tensor::Span>> forward_spans_;
  std::optional<tensor::Span> backward_span_;
  std::vector<std::shared_ptr<void>> last_gradient_hooks_;
};

}  // namespace tessera::fsdp
