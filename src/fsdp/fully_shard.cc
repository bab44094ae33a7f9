#include "tessera/fsdp/fully_shard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "comm/device/device_communicator.h"
#include "fsdp/grads/grad_norm.h"
#include "fsdp/params/full_tensors.h"
#include "fsdp/params/load_shards.h"
#include "fsdp/params/precision.h"
#include "fsdp/plan/build_units.h"
#include "fsdp/plan/print_model.h"
#include "fsdp/plan/same_plan.h"
#include "fsdp/plan/same_source.h"
#include "fsdp/plan/wrap_classes.h"
#include "fsdp/runtime/runtime.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

class Model final : public FullyShardedDataParallel {
 public:
  Model(std::shared_ptr<Runtime> runtime, const UnitPlan& plan, std::vector<NamedBuffer> buffers)
      : runtime_(std::move(runtime)), buffers_(std::move(buffers)) {
    std::vector<int> next(plan.units.size(), 0);
    for (const auto& p : plan.parameters) {
      auto& n = next[static_cast<std::size_t>(p.unit)];
      registration_.emplace_back(p.unit, n++);
    }
    for (const auto& unit : runtime_->units())
      for (std::size_t s = 0; s < unit->segments().size(); ++s)
        if (unit->segments()[s].trainable) leaves_.push_back({unit.get(), s});
    offload_store_ = runtime_->offload();
    if (!offload_store_) offload_store_ = split_masters();
  }

  std::vector<at::Tensor> parameters() const override {
    runtime_->finish_step();
    std::vector<at::Tensor> result;
    for (const auto& l : leaves_) result.push_back(l.unit->store().shard(l.segment));
    return result;
  }

  std::vector<ShardView> shards() const override;

  void set_gradient_divisor(double divisor) override {
    if (!(divisor > 0))
      throw ConfigError("set_gradient_divisor: expected a positive number, found " + std::to_string(divisor));
    runtime_->reducer().set_divisor(divisor);
  }
  void set_requires_gradient_sync(bool sync) override { runtime_->reducer().set_sync(sync); }
  bool syncs_beside_computation() const override { return runtime_->syncs_beside_computation(); }

  double clip_grad_norm(double max_norm, double p) override {
    const auto grads = this->grads();
    const auto norm = global_norm(grads, p, *runtime_->mesh().shard);
    const auto factor = clip_factor(norm, max_norm);
    if (factor < 1.0) scale_in_place(grads, factor);
    return norm;
  }

  double clip_grad_norm(double max_norm, optim::Optimizer& optimizer, double p) override {
    const auto norm = global_norm(this->grads(), p, *runtime_->mesh().shard);
    optimizer.scale_next_gradients(clip_factor(norm, max_norm));
    return norm;
  }

  void zero_grad() override {
    for (auto& unit : runtime_->units()) unit->zero_grad();
  }

  void step(optim::Optimizer& optimizer) override;
  void finish_step() override { runtime_->finish_step(); }

  void mark_updated() override {
    runtime_->finish_step();
    for (const auto& l : leaves_) l.unit->store().shard(l.segment).unsafeGetTensorImpl()->bump_version();
  }

  void visit_full(const VisitTensor& visit, const std::function<bool(const std::string&)>& wanted) override;

  void update_full(const VisitTensor& change) override {
    runtime_->finish_step();
    for (const auto& l : leaves_) {
      l.unit->store().join_masters();
      update_segment(*l.unit, l.unit->segments()[l.segment], l.unit->store().shard(l.segment), *runtime_->mesh().shard,
                     change);
    }
    runtime_->mesh().world->barrier();
  }

  void visit_full_grads(const VisitTensor& visit) override {
    runtime_->finish_step();
    for (const auto& l : leaves_) {
      const auto grad = l.unit->store().shard(l.segment).grad();
      if (grad.defined()) visit_segment(*l.unit, l.unit->segments()[l.segment], grad, *runtime_->mesh().shard, visit);
    }
  }

  void visit_full_of(const std::vector<at::Tensor>& like_parameters, const VisitTensor& visit) override {
    if (like_parameters.size() != leaves_.size())
      throw Error("visit_full_of: expected " + std::to_string(leaves_.size()) +
                  " tensors, one for each of parameters(), found " + std::to_string(like_parameters.size()));
    runtime_->finish_step();
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      visit_segment(*leaves_[i].unit, leaves_[i].unit->segments()[leaves_[i].segment], like_parameters[i],
                    *runtime_->mesh().shard, visit);
  }

  std::vector<NamedBuffer> buffers() const override { return buffers_; }
  std::shared_ptr<tensor::OffloadStore> offload_store() const override { return offload_store_; }
  MemoryStats memory() const override;
  CommStats comm_stats() const override { return runtime_->stats(); }
  std::string activity() const override { return runtime_->activity(); }
  std::string to_string() const override {
    if (!runtime_->units().front()->module()) throw Error("to_string(): the sharded module was destroyed");
    return print_model(*runtime_);
  }
  comm::Communicator& group() const override { return *runtime_->mesh().world; }
  std::shared_ptr<comm::Communicator> shard_group() const override { return runtime_->mesh().shard; }
  int replica() const override { return runtime_->mesh().replica; }

 private:
  struct Leaf {
    Unit* unit;
    std::size_t segment;
  };

  std::vector<at::Tensor> grads() const {
    std::vector<at::Tensor> result;
    for (const auto& p : parameters()) result.push_back(p.grad());
    return result;
  }

  /// Null: there are none.
  std::shared_ptr<tensor::OffloadStore> split_masters() const {
    std::vector<std::shared_ptr<SplitMaster>> masters;
    for (const auto& unit : runtime_->units())
      for (const auto& m : unit->store().split_masters())
        if (m) masters.push_back(m);
    return masters.empty() ? nullptr : std::make_shared<SplitMasters>(std::move(masters));
  }

  ShardView mapped_view(const UnitParameter& p) const;
  void visit_shard(Unit& unit, std::size_t segment, const VisitTensor& visit);

  std::shared_ptr<Runtime> runtime_;
  std::vector<std::pair<int, int>> registration_;  // unit and index in it
  std::vector<Leaf> leaves_;
  std::vector<NamedBuffer> buffers_;
  std::shared_ptr<tensor::OffloadStore> offload_store_;
};

// A mapped parameter is whole on every rank; rank 0 answers for it.
ShardView Model::mapped_view(const UnitParameter& p) const {
  const auto flat = p.mapped.view(-1);
  const bool mine = runtime_->mesh().shard->rank() == 0;
  ShardView view;
  view.name = p.spec.name;
  view.shape = p.spec.shape;
  view.local = mine ? flat : flat.narrow(0, 0, 0);
  return view;
}

void Model::step(optim::Optimizer& optimizer) {
  const auto leaves = parameters();  // waits for a step before
  auto* background = runtime_->background_step();
  const auto is_leaf = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  const auto& stepped = optimizer.parameters();
  if (background && !optimizer.collective() &&
      std::equal(stepped.begin(), stepped.end(), leaves.begin(), leaves.end(), is_leaf))
    return background->start(optimizer);
  optimizer.step();
  optimizer.zero_grad();
}

std::vector<ShardView> Model::shards() const {
  runtime_->finish_step();
  std::unordered_map<const UnitParameter*, ShardView> held;
  std::int64_t leaf = -1;
  for (const auto& unit : runtime_->units()) {
    unit->store().join_masters();
    for (std::size_t s = 0; s < unit->segments().size(); ++s) {
      const auto& segment = unit->segments()[s];
      if (segment.trainable) ++leaf;
      for (const auto& piece : pieces_of_slice(segment, runtime_->mesh().shard->rank())) {
        const auto& shard = unit->store().shard(s);
        const auto& p = unit->parameters()[static_cast<std::size_t>(piece.parameter)];
        auto& view = held[&p];
        view.offset = piece.in_parameter;
        view.local = unit->store().values(s).narrow(0, piece.in_slice, piece.numel);
        if (p.spec.packed()) {
          view.offset /= static_cast<std::int64_t>(c10::elementSize(p.spec.stored));
          view.local = view.local.view(p.spec.stored);
        }
        if (shard.grad().defined()) view.grad = shard.grad().narrow(0, piece.in_slice, piece.numel);
        if (segment.trainable) view.parameter = leaf, view.parameter_offset = piece.in_slice;
      }
    }
  }
  std::vector<ShardView> result;
  for (auto [u, i] : registration_) {
    const auto& unit = *runtime_->units()[static_cast<std::size_t>(u)];
    const auto& p = unit.parameters()[static_cast<std::size_t>(i)];
    auto found = held.find(&p);
    auto view = p.spec.mapped ? mapped_view(p) : found == held.end() ? ShardView{} : found->second;
    if (!view.local.defined()) {
      view.local = unit.store().values(static_cast<std::size_t>(p.segment)).narrow(0, 0, 0);
      if (p.spec.packed()) view.local = view.local.view(p.spec.stored);
    }
    view.name = p.spec.name;
    view.unit = unit.name();
    view.shape = p.spec.shape;
    view.trainable = p.spec.trainable;
    view.dtype = p.spec.mapped ? p.spec.compute : p.spec.shard_dtype();
    view.packed = p.spec.packed();
    result.push_back(std::move(view));
  }
  return result;
}

void Model::visit_shard(Unit& unit, std::size_t segment, const VisitTensor& visit) {
  unit.store().join_masters();
  visit_segment(unit, unit.segments()[segment], unit.store().shard(segment), *runtime_->mesh().shard, visit);
  unit.store().settle();
}

void Model::visit_full(const VisitTensor& visit, const std::function<bool(const std::string&)>& wanted) {
  runtime_->finish_step();
  const VisitTensor filtered = [&](const std::string& name, const at::Tensor& tensor) {
    if (!wanted || wanted(name)) visit(name, tensor);
  };
  for (const auto& unit : runtime_->units()) {
    for (std::size_t s = 0; s < unit->segments().size(); ++s) {
      const auto& segment = unit->segments()[s];
      const bool any = std::any_of(segment.entries.begin(), segment.entries.end(), [&](const Entry& e) {
        return !wanted || wanted(unit->parameters()[static_cast<std::size_t>(e.parameter)].spec.name);
      });
      if (!any) continue;
      // Frozen values in shared memory are whole and are never written: nothing to gather.
      if (!segment.trainable && segment.shard_dtype() == segment.compute && unit->store().always_whole())
        visit_whole(*unit, segment, unit->store().whole(s), filtered);
      else
        visit_shard(*unit, s, filtered);
    }
    for (const auto& p : unit->parameters())
      if (p.spec.mapped) filtered(p.spec.name, p.mapped);
    unit->check_files();
    if (runtime_->offload()) unit->evict();
  }
}

MemoryStats Model::memory() const {
  runtime_->finish_step();
  MemoryStats m;
  for (const auto& unit : runtime_->units()) {
    m.shard_bytes += unit->store().shard_bytes();
    for (const auto& p : unit->parameters())
      if (p.spec.mapped) m.mapped_bytes += static_cast<std::int64_t>(p.mapped.nbytes());
  }
  if (runtime_->offload()) m.offloaded_bytes = runtime_->offload()->held_bytes();
  m.gathered_bytes = runtime_->meter().now;
  m.peak_gathered_bytes = runtime_->meter().peak;
  m.gradient_shard_bytes = runtime_->reducer().shard_bytes();
  m.gradient_buffer_bytes = runtime_->reducer().buffer_bytes();
  const auto lasting = runtime_->resident() ? m.shard_bytes + m.gradient_shard_bytes + m.gradient_buffer_bytes : 0;
  m.device_bytes = runtime_->device_meter().now + lasting;
  m.peak_device_bytes = runtime_->device_meter().peak + lasting;
  return m;
}

void choose_checkpointing(nn::HookedModule& root, const UnitPlan& plan, const WrapPolicy& policy) {
  EveryNth units{.n = 1, .policy = policy};
  if (const auto* nth = policy.target<EveryNth>()) units = *nth;
  if (!units.policy.target<SameAsWrap>()) {
    check_classes(policy, root);
    nn::set_checkpointing(root, policy);
    return;
  }
  nn::set_checkpointing(root, units.policy);  // off
  for (const auto& unit : plan.units)
    if (unit.parent == 0) unit.module->set_checkpointing(units.takes());
  if (std::none_of(plan.units.begin(), plan.units.end(), [](const auto& unit) { return unit.parent == 0; }))
    throw ConfigError(
        "activation checkpointing of the wrapped modules: the wrap policy chooses none; choose the model's blocks",
        "fsdp_activation_checkpointing");
}

/// With its index.
at::Device checked_device(at::Device device) {
  if (device.is_cpu()) return at::kCPU;
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(device.type())].load();
  const int count = guard ? guard->deviceCount() : 0;
  if (device.index() >= count || count == 0)
    throw ConfigError("fully_shard: there is no device '" + device.str() + "': this libtorch " +
                          (guard ? "finds " + std::to_string(count) + " of its type" : "was built without its type") +
                          "; compute on the CPU",
                      "device");
  return device.has_index() ? device : guard->getDevice();
}

void check_not_sharded(const nn::HookedModule& module) {
  if (module.hooked())
    throw ConfigError("fully_shard: module of class '" + module.class_name() + "' is sharded already");
}

}  // namespace

std::vector<optim::ParameterSlice> parameter_slices(const FullyShardedDataParallel& model) {
  std::vector<optim::ParameterSlice> slices;
  for (const auto& view : model.shards()) {
    if (!view.trainable) continue;
    auto& slice = slices.emplace_back();
    slice.name = view.name;
    slice.shape = view.shape;
    if (view.parameter < 0) continue;
    slice.offset = view.offset;
    slice.numel = view.local.numel();
    slice.parameter = view.parameter;
    slice.parameter_offset = view.parameter_offset;
  }
  return slices;
}

std::unique_ptr<FullyShardedDataParallel> fully_shard(nn::HookedModule& root, std::shared_ptr<comm::Communicator> group,
                                                      FsdpOptions options) {
  check_not_sharded(root);
  for (const auto& module : root.modules(/*include_self=*/false))
    if (const auto* hooked = dynamic_cast<const nn::HookedModule*>(module.get())) check_not_sharded(*hooked);
  if (options.max_gathers_in_flight < 0)
    throw ConfigError("fully_shard: max_gathers_in_flight must not be negative, found " +
                      std::to_string(options.max_gathers_in_flight));
  options.device = checked_device(options.device);
  const auto plan = plan_units(root, options.wrap, options.ignored_modules);
  if (options.activation_checkpointing) choose_checkpointing(root, plan, options.activation_checkpointing);
  check_same_plan(plan, options, *group);
  check_same_source(plan, options, *group);
  if (is_resident(options) && group->size() > 1) group = comm::with_device(std::move(group), options.device);
  auto mesh = make_mesh(std::move(group), options.strategy, options.shard_group_size);
  auto runtime = std::make_shared<Runtime>(std::move(mesh), std::move(options));
  auto buffers = named_buffers(root);
  read_buffers(buffers, runtime->options());
  if (runtime->options().sync_module_states) sync_buffers(root, *runtime->mesh().world);
  cast_buffers(root, plan.ignored, runtime->options().precision);
  tensor::naming_device_errors([&] { return "sharding the model onto '" + runtime->options().device.str() + "'"; },
                               [&] {
                                 move_buffers(root, runtime->options().device);
                                 build_units(*runtime, plan);
                               });
  return std::make_unique<Model>(std::move(runtime), plan, std::move(buffers));
}

}  // namespace tessera::fsdp
