// Adapters of a sharded model, merged into its weights or initialised from them, one unit at a time.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/pretrained.h"
#include "checkpoint/visit_dense.h"
#include "peft/merge.h"

namespace tessera::checkpoint {
namespace {

/// Whole values of the adapter's parameters, by their names in its module.
peft::Values adapter_values(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted) {
  std::map<std::string, std::string> names;  // by those in the sharded model
  std::set<std::string> wanted;
  for (const auto& name : nn::adapter_parameters(adapted.module)) {
    names[adapted.sharded_name(name)] = name;
    wanted.insert(adapted.sharded_name(name));
  }
  peft::Values values;
  for (auto& [name, value] : gather_values(model, wanted)) values[names.at(name)] = std::move(value);
  return values;
}

}  // namespace

void write_values(fsdp::FullyShardedDataParallel& model, const peft::Values& values) {
  for (const auto& view : model.shards()) {
    const auto it = values.find(view.name);
    if (it != values.end() && view.local.numel() > 0)
      view.local.copy_(it->second.flatten().narrow(0, view.offset, view.local.numel()));
  }
  model.mark_updated();
}

peft::Values made_for_file(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted) {
  const auto adapters = nn::adapter_parameters(adapted.module);
  const bool none = std::none_of(adapters.begin(), adapters.end(),
                                 [&](const std::string& name) { return adapted.method.file_names(name).empty(); });
  if (none) return adapted.method.in_file({});
  const at::NoGradGuard no_grad;
  return adapted.method.in_file(adapter_values(model, adapted));
}

void visit_merged(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted, at::Device device,
                  const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit) {
  const auto adapters = nn::adapter_parameters(adapted.module);
  const peft::Merger merger(adapted.module, adapted.method, gather_values(model, adapters), device);
  model.visit_full([&](const std::string& name, const at::Tensor& tensor) { visit(name, merger.merged(name, tensor)); },
                   [&](const std::string& name) { return !adapters.contains(name); });
}

void initialise_from_weights(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted,
                             std::optional<std::uint64_t> seed, const StoredWeight& stored) {
  const at::NoGradGuard no_grad;
  std::multimap<std::string, peft::FromWeight> jobs;  // by the weight's name
  for (auto& job : seed ? adapted.method.from_weights(adapted.module, *seed)
                        : adapted.method.from_weights_of_saved(adapted.module)) {
    auto weight = job.weight;
    jobs.emplace(std::move(weight), std::move(job));
  }
  if (jobs.empty()) return;
  const auto adapters = adapter_values(model, adapted);
  peft::Values values;
  visit_dense(
      model, adapted.sharded_module(),
      [&](const std::string& name, const at::Tensor& weight) {
        for (auto [job, end] = jobs.equal_range(name); job != end; ++job)
          values.merge(job->second.with_stored ? job->second.with_stored(weight, stored(name))
                                               : job->second.values(weight, adapters));
      },
      [&](const std::string& name) { return jobs.contains(name); });
  peft::Values named;
  for (auto& [name, value] : values) named[adapted.sharded_name(name)] = std::move(value);
  write_values(model, named);
}

}  // namespace tessera::checkpoint
