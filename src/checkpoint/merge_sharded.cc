// Adapters of a sharded model, merged into its weights or initialised from them, one unit at a time.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/pretrained.h"
#include "checkpoint/visit_dense.h"
#include "peft/merge.h"
#include "tessera/comm/communicator.h"

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

/// Whole values into this rank's slices. mark_updated() is the caller's.
class ShardWriter {
 public:
  explicit ShardWriter(fsdp::FullyShardedDataParallel& model) : group_(model.group()) {
    for (auto& view : model.shards()) views_.emplace(view.name, std::move(view));
  }

  void write(const std::string& name, const at::Tensor& value) const {
    const auto found = views_.find(name);
    if (found == views_.end() || found->second.local.numel() == 0) return;
    const auto& view = found->second;
    view.local.copy_(value.flatten().narrow(0, view.offset, view.local.numel()));
  }

  /// Collective. The values that rank `src` has.
  void write_from(int src, const peft::Values& values) const {
    std::string names;
    for (const auto& [name, value] : values) names += name + "\n";
    names = group_.broadcast_object(names, src);
    for (std::size_t at = 0; at < names.size();) {
      const std::string name = names.substr(at, names.find('\n', at) - at);
      at += name.size() + 1;
      const auto found = values.find(name);
      const auto value = found != values.end() ? found->second.to(at::kCPU, at::kFloat).flatten().contiguous()
                                               : at::empty({c10::multiply_integers(views_.at(name).shape)}, at::kFloat);
      group_.broadcast(value, src)->wait();
      write(name, value);
    }
  }

 private:
  comm::Communicator& group_;
  std::map<std::string, fsdp::ShardView> views_;
};

}  // namespace

void write_values(fsdp::FullyShardedDataParallel& model, const peft::Values& values) {
  const ShardWriter writer(model);
  for (const auto& [name, value] : values) writer.write(name, value);
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
  bool reads_adapters = false;
  for (auto& job : seed ? adapted.method.from_weights(adapted.module, *seed)
                        : adapted.method.from_weights_of_saved(adapted.module)) {
    reads_adapters = reads_adapters || job.reads_adapters;
    auto weight = job.weight;
    jobs.emplace(std::move(weight), std::move(job));
  }
  if (jobs.empty()) return;
  const auto adapters = reads_adapters ? adapter_values(model, adapted) : peft::Values();
  // Singular values take long: each rank computes those of every size()-th weight, and keeps no others.
  comm::Communicator& group = model.group();
  std::vector<peft::Values> made;  // of each weight, none where it is another rank's turn
  const auto turn = [&](std::size_t weight) {
    return static_cast<int>(weight % static_cast<std::size_t>(group.size()));
  };
  visit_dense(
      model, adapted.sharded_module(),
      [&](const std::string& name, const at::Tensor& weight) {
        peft::Values& values = made.emplace_back();
        if (turn(made.size() - 1) != group.rank()) return;
        for (auto [job, end] = jobs.equal_range(name); job != end; ++job)
          for (auto& [parameter, value] : job->second.with_stored ? job->second.with_stored(weight, stored(name))
                                                                  : job->second.values(weight, adapters))
            values.emplace(adapted.sharded_name(parameter), std::move(value));
      },
      [&](const std::string& name) { return jobs.contains(name); });
  const ShardWriter writer(model);
  for (std::size_t i = 0; i < made.size(); ++i) writer.write_from(turn(i), std::exchange(made[i], {}));
  model.mark_updated();
}

}  // namespace tessera::checkpoint
