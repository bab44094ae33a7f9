// Adapters of a sharded model, merged into its weights or initialised from them, one unit at a time.
#include <ATen/core/grad_mode.h>

#include <map>
#include <set>

#include "checkpoint/pretrained.h"
#include "peft/merge.h"
#include "tessera/nn/linear.h"

namespace tessera::checkpoint {
namespace {

peft::Values gather(fsdp::FullyShardedDataParallel& model, const std::set<std::string>& names) {
  peft::Values out;
  model.visit_full([&](const std::string& name, const at::Tensor& t) { out[name] = t.clone(); },
                   [&](const std::string& name) { return names.contains(name); });
  return out;
}

using Visit = std::function<void(const std::string& name, const at::Tensor& tensor)>;

/// visit_full() of the wanted parameters, a packed matrix as the dense one in float32, [out, in].
void visit_dense(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module, const Visit& visit,
                 const std::function<bool(const std::string&)>& wanted) {
  std::map<std::string, nn::Linear*> packed;     // by weight
  std::map<std::string, std::string> weight_of;  // by field
  std::map<std::string, std::set<std::string>> missing;
  for (const auto& item : module.named_modules()) {
    auto* linear = dynamic_cast<nn::Linear*>(item.value().get());
    const auto weight = item.key() + ".weight";
    if (!linear || !linear->codec() || !wanted(weight)) continue;
    packed[weight] = linear;
    for (const auto& field : linear->codec()->fields(linear->out_features(), linear->in_features())) {
      const auto name = field.name.empty() ? weight : weight + "." + field.name;
      weight_of[name] = weight;
      missing[weight].insert(name);
    }
  }
  std::map<std::string, at::Tensor> fields;
  model.visit_full(
      [&](const std::string& name, const at::Tensor& tensor) {
        const auto found = weight_of.find(name);
        if (found == weight_of.end()) return visit(name, tensor);
        const auto& weight = found->second;
        fields[name] = tensor.clone();
        missing[weight].erase(name);
        if (!missing[weight].empty()) return;
        const auto* linear = packed.at(weight);
        tensor::PackedMatrix matrix{
            linear->handle().matrix()->codec, linear->out_features(), linear->in_features(), {}};
        for (const auto& field : matrix.codec->fields(matrix.rows, matrix.columns)) {
          const auto at = fields.find(field.name.empty() ? weight : weight + "." + field.name);
          matrix.fields.push_back(std::move(at->second));
          fields.erase(at);
        }
        visit(weight, tensor::unpack(matrix, at::kFloat));
      },
      [&](const std::string& name) { return weight_of.contains(name) || wanted(name); });
}

void write_slices(fsdp::FullyShardedDataParallel& model, const peft::Values& values) {
  for (const auto& view : model.shards()) {
    const auto it = values.find(view.name);
    if (it != values.end() && view.local.numel() > 0)
      view.local.copy_(it->second.flatten().narrow(0, view.offset, view.local.numel()));
  }
  model.mark_updated();
}

}  // namespace

void visit_merged(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted,
                  const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit) {
  const auto adapters = nn::adapter_parameters(adapted.module);
  const peft::Merger merger(adapted.module, adapted.method, gather(model, adapters));
  model.visit_full([&](const std::string& name, const at::Tensor& tensor) { visit(name, merger.merged(name, tensor)); },
                   [&](const std::string& name) { return !adapters.contains(name); });
}

void initialise_from_weights(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  std::multimap<std::string, peft::FromWeight> jobs;  // by the weight's name
  for (auto& job : adapted.method.from_weights(adapted.module, seed)) {
    auto weight = job.weight;
    jobs.emplace(std::move(weight), std::move(job));
  }
  if (jobs.empty()) return;
  const auto adapters = gather(model, nn::adapter_parameters(adapted.module));
  peft::Values values;
  visit_dense(
      model, adapted.module,
      [&](const std::string& name, const at::Tensor& weight) {
        for (auto [job, end] = jobs.equal_range(name); job != end; ++job)
          values.merge(job->second.values(weight, adapters));
      },
      [&](const std::string& name) { return jobs.contains(name); });
  write_slices(model, values);
}

}  // namespace tessera::checkpoint
