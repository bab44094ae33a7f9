#include "fsdp/plan/build_units.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "base/gradient_ring.h"
#include "fsdp/params/load_shards.h"
#include "fsdp/params/precision.h"
#include "fsdp/plan/memory_form.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::fsdp {
namespace {

struct Draft {
  std::vector<UnitParameter> parameters;
  std::vector<Segment> segments;
};

/// Why a parameter cannot be a view of its file; empty: it can.
std::string why_not_mapped(const FsdpOptions& options, const ParameterSpec& spec) {
  const auto name = name_in_source(options, spec.name);
  if (name.empty()) return "it is not in a weight file";
  const auto& info = *options.source->find(name);
  if (!spec.packed() && info.dtype != spec.compute)
    return std::string("the file holds ") + c10::toString(info.dtype) + ", the computation needs " +
           c10::toString(spec.compute);
  const auto mapped = spec.packed() ? options.source->map_bytes(name) : options.source->map(name);
  if (!mapped || reinterpret_cast<std::uintptr_t>(mapped->data) % c10::elementSize(spec.compute) != 0)
    return "its bytes in the file are compressed, misaligned or not contiguous";
  return {};
}

/// Before anything is taken over.
void check_form(const at::Tensor& parameter, const ParameterSpec& spec) {
  if (spec.trainable && at::isComplexType(spec.stored))
    throw ConfigError("fully_shard: parameter '" + spec.name + "' is " + c10::toString(spec.stored) +
                      ", and gradients of complex numbers are not summed over ranks. Register its real form "
                      "(at::view_as_real) and compute with at::view_as_complex");
  if (parameter.layout() != at::kStrided)
    throw ConfigError("fully_shard: parameter '" + spec.name + "' is not dense (" + c10::str(parameter.layout()) +
                      "); register it dense");
  if (parameter.is_meta())
    throw ConfigError("fully_shard: parameter '" + spec.name +
                      "' is on the device 'meta'. Register nn::make_parameter(sizes, dtype), which has no memory "
                      "either, and give values by FsdpOptions::source or param_init_fn");
}

ParameterSpec make_spec(const PlannedParameter& p, const FsdpOptions& options, bool ignored, int rank) {
  ParameterSpec spec;
  spec.name = p.name;
  spec.shape = p.tensor.sizes().vec();
  spec.stored = p.tensor.scalar_type();
  spec.block_bytes = p.block_bytes;
  spec.compute = ignored || spec.packed() ? spec.stored : compute_dtype(spec.stored, options.precision);
  spec.trainable = p.tensor.requires_grad();
  check_form(p.tensor, spec);
  spec.kept = !spec.trainable && !spec.packed() && options.keeps_frozen && options.keeps_frozen(spec.name);
  check_source_shape(options, spec);
  const bool received = options.sync_module_states && rank > 0;
  if (name_in_source(options, spec.name).empty() && !received && !options.param_init_fn)
    check_has_value(p.tensor, spec.name, options);
  const bool may_map = options.gather == GatherForm::kAuto || options.gather == GatherForm::kMapped;
  if (spec.trainable || !may_map || is_resident(options)) return spec;  // a view is host memory
  const auto reason = why_not_mapped(options, spec);
  spec.mapped = reason.empty();
  if (!spec.mapped && options.gather == GatherForm::kMapped)
    throw ConfigError("gather form 'mapped': frozen parameter '" + spec.name + "' cannot be mapped: " + reason,
                      "gather");
  return spec;
}

std::vector<Draft> draft_units(const UnitPlan& plan, const FsdpOptions& options, const Mesh& mesh) {
  std::vector<Draft> drafts(plan.units.size());
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    const auto& p = plan.parameters[i];
    const auto unit = static_cast<std::size_t>(p.unit);
    const bool ignored = plan.units[unit].module == nullptr;
    auto& drafted = drafts[unit].parameters.emplace_back();
    drafted.spec = make_spec(p, options, ignored, mesh.world->rank());
    drafted.spec.alone = p.unit == 0 && drafted.spec.trainable && drafted.spec.numel() >= kAloneNumel;
    drafted.tensor = p.tensor;
    drafted.position = static_cast<int>(i);
  }
  for (auto& d : drafts) {
    std::vector<ParameterSpec> specs;
    for (const auto& p : d.parameters) specs.push_back(p.spec);
    d.segments = make_segments(specs, mesh.shard->size());
    for (std::size_t s = 0; s < d.segments.size(); ++s) {
      for (const auto& e : d.segments[s].entries) {
        auto& p = d.parameters[static_cast<std::size_t>(e.parameter)];
        p.segment = static_cast<int>(s);
        p.offset = e.offset;
      }
    }
  }
  return drafts;
}

at::Tensor map_parameter(const ParameterSpec& spec, const FsdpOptions& options) {
  const auto name = name_in_source(options, spec.name);
  auto mapped = spec.packed() ? options.source->map_bytes(name) : options.source->map(name);
  return at::from_blob(
      mapped->data, spec.shape, [held = mapped->keep_alive](void*) {}, at::TensorOptions().dtype(spec.compute));
}

/// From here on the module's tensor has no memory of its own.
void take_over(UnitParameter p, const FsdpOptions& options) {
  p.tensor.mutable_grad().reset();
  const auto dtype = p.spec.compute;
  p.tensor.set_data(
      tensor::make_detached(p.spec.shape, dtype, "parameter '" + p.spec.name + "' is sharded", options.device));
  if (p.spec.mapped && options.device.is_cpu()) tensor::attach(p.tensor, p.mapped.mutable_data_ptr(), p.mapped);
}

std::vector<TrainableSegment> trainable_segments(const Unit& unit, const MixedPrecision& precision) {
  std::vector<TrainableSegment> result;
  for (std::size_t i = 0; i < unit.segments().size(); ++i) {
    const auto& s = unit.segments()[i];
    if (!s.trainable) continue;
    const bool open_to_the_end = unit.ignored() || (unit.index() == 0 && !s.alone);
    const auto& first = unit.parameters()[static_cast<std::size_t>(s.entries.front().parameter)];
    auto& added = result.emplace_back(s, unit.store().shard(i), unit.ignored() ? s.compute : reduce_dtype(s, precision),
                                      open_to_the_end ? -1 : first.position, unit.shown_name());
    for (const auto& entry : s.entries)
      added.parameters.push_back(unit.parameters()[static_cast<std::size_t>(entry.parameter)].tensor);
  }
  return result;
}

}  // namespace

void build_units(Runtime& runtime, const UnitPlan& plan) {
  at::NoGradGuard no_grad;
  const auto& options = runtime.options();
  const auto& group = runtime.mesh().shard;
  auto drafts = draft_units(plan, options, runtime.mesh());
  std::int64_t bytes = 0;
  for (const auto& d : drafts) bytes += shared_store_bytes(d.segments);
  const auto form = choose_memory_form(runtime, bytes);
  runtime.set_shared_memory(form->shared());
  std::vector<std::vector<TrainableSegment>> trainable;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    auto& d = drafts[i];
    auto store = form->make_store(d.segments);
    for (auto& p : d.parameters)
      if (p.spec.mapped) p.mapped = map_parameter(p.spec, options);
    auto unit = std::make_shared<Unit>(runtime, static_cast<int>(i), plan.units[i].name, plan.units[i].module,
                                       std::move(d.parameters), std::move(d.segments), std::move(store));
    load_slices(*unit, group->rank(), options, *runtime.mesh().world);
    unit->publish();
    for (const auto& p : unit->parameters()) take_over(p, options);
    trainable.push_back(trainable_segments(*unit, options.precision));
    runtime.units().push_back(std::move(unit));
  }
  runtime.reducer().set_units(std::move(trainable), form->make_transport());
  group->barrier();  // all slices are visible
  for (auto& unit : runtime.units()) unit->activate();
  runtime.prepare_steps();
}

}  // namespace tessera::fsdp
