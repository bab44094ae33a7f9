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
  std::map<std::string, std::pair<std::string, std::size_t>> field_of;  // a parameter's weight and place in it
  std::map<std::string, tensor::PackedMatrix> matrices;                 // by weight; some fields are still to come
  for (const auto& item : module.named_modules()) {
    const auto* linear = dynamic_cast<const nn::Linear*>(item.value().get());
    const auto weight = item.key() + ".weight";
    if (!linear || !linear->codec() || !wanted(weight)) continue;
    tensor::PackedMatrix matrix{linear->codec(), linear->out_features(), linear->in_features(), {}};
    const auto fields = matrix.codec->fields(matrix.rows, matrix.columns);
    for (std::size_t i = 0; i < fields.size(); ++i) field_of[fields[i].full_name(weight)] = {weight, i};
    matrix.fields.resize(fields.size());
    matrices.emplace(weight, std::move(matrix));
  }
  model.visit_full(
      [&](const std::string& name, const at::Tensor& tensor) {
        const auto found = field_of.find(name);
        if (found == field_of.end()) return visit(name, tensor);
        const auto& [weight, field] = found->second;
        auto& matrix = matrices.at(weight);
        matrix.fields[field] = tensor.clone();
        for (const auto& t : matrix.fields)
          if (!t.defined()) return;
        visit(weight, tensor::unpack(matrix, at::kFloat));
        matrices.erase(weight);
      },
      [&](const std::string& name) { return field_of.contains(name) || wanted(name); });
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
