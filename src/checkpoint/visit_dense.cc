#include "checkpoint/visit_dense.h"

#include <map>
#include <set>
#include <utility>

#include "tessera/nn/linear.h"

namespace tessera::checkpoint {

peft::Values gather_values(fsdp::FullyShardedDataParallel& model, const std::set<std::string>& names) {
  peft::Values out;
  model.visit_full([&](const std::string& name, const at::Tensor& t) { out[name] = t.clone(); },
                   [&](const std::string& name) { return names.contains(name); });
  return out;
}

void visit_dense(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module, const VisitTensor& visit,
                 const ParameterChoice& wanted, at::Device device) {
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
        matrix.fields[field] = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
        for (const auto& t : matrix.fields)
          if (!t.defined()) return;
        visit(weight, tensor::unpack(matrix, at::kFloat));
        matrices.erase(weight);
      },
      [&](const std::string& name) { return field_of.contains(name) || wanted(name); });
}

}  // namespace tessera::checkpoint
