#include "fsdp/plan/unit_plan.h"

#include <map>
#include <tuple>
#include <unordered_map>

#include "fsdp/plan/wrap_classes.h"
#include "tessera/nn/packed_weight.h"

namespace tessera::fsdp {
namespace {

constexpr int kIgnored = 1;  // index of the unit of ignored parameters, where there is one

/// The modules that the filter matches, with all below them.
std::unordered_set<const torch::nn::Module*> find_ignored(torch::nn::Module& root, const ModuleFilter& filter) {
  std::unordered_set<const torch::nn::Module*> ignored;
  if (!filter) return ignored;
  if (filter("", root))
    throw ConfigError("ignored modules: the filter matches the root, so that nothing would be sharded",
                      "fsdp_ignored_modules");
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (!filter(item.key(), *item.value())) continue;
    for (const auto& module : item.value()->modules()) ignored.insert(module.get());
  }
  if (ignored.empty())
    throw ConfigError("ignored modules: no module's name matches; look at the names in the printed model",
                      "fsdp_ignored_modules");
  return ignored;
}

class Planner {
 public:
  Planner(UnitPlan& plan, const WrapPolicy& policy) : plan_(plan), policy_(policy) {}

  void visit(const std::string& name, torch::nn::Module& module, int unit) {
    if (const auto* packed = dynamic_cast<const nn::PackedWeight*>(&module)) note_fields(*packed);
    auto* hooked = dynamic_cast<nn::HookedModule*>(&module);
    const bool ignored = plan_.ignored.contains(&module);
    const bool wanted =
        hooked && !ignored && (plan_.units.empty() || (hooked->may_be_unit() && policy_(name, *hooked)));
    if (wanted && !seen_modules_.contains(&module)) {
      plan_.units.push_back({name, hooked, unit});
      unit = static_cast<int>(plan_.units.size()) - 1;
      seen_modules_[&module] = unit;
      if (unit == 0 && !plan_.ignored.empty()) plan_.units.push_back({"(ignored modules)", nullptr, -1});
    } else if (auto found = seen_modules_.find(&module); found != seen_modules_.end()) {
      unit = found->second;  // a shared module is one unit
    }
    if (ignored) unit = kIgnored;
    const auto prefix = name.empty() ? name : name + ".";
    for (const auto& p : module.named_parameters(/*recurse=*/false)) {
      if (!p.value().defined()) continue;
      auto [found, added] = index_.try_emplace(p.value().unsafeGetTensorImpl(), plan_.parameters.size());
      if (added) plan_.parameters.push_back({prefix + p.key(), p.value(), unit, {}, 0});
      auto& owner = plan_.parameters[found->second].unit;
      owner = common_ancestor(owner, unit);
    }
    for (const auto& child : module.named_children()) visit(prefix + child.key(), *child.value(), unit);
  }

  /// What is a field of a packed matrix, whichever module registers it.
  void mark_packed() {
    for (auto& p : plan_.parameters) {
      const auto found = fields_.find(p.tensor.unsafeGetTensorImpl());
      if (found == fields_.end()) continue;
      std::tie(p.codec, p.block_bytes) = found->second;
      if (p.tensor.requires_grad())
        throw ConfigError("fully_shard: parameter '" + p.name + "' is packed (" + p.codec +
                          ") and cannot train; freeze it, and train an adapter beside it");
    }
  }

 private:
  void note_fields(const nn::PackedWeight& packed) {
    const auto& matrix = *packed.matrix();
    const auto fields = matrix.codec->fields(matrix.rows, matrix.columns);
    for (std::size_t i = 0; i < fields.size(); ++i)
      fields_[matrix.fields[i].unsafeGetTensorImpl()] = {matrix.codec->name(), fields[i].block_bytes};
  }

  int depth(int unit) const {
    int d = 0;
    for (; unit > 0; unit = plan_.units[static_cast<std::size_t>(unit)].parent) ++d;
    return d;
  }
  int common_ancestor(int a, int b) const {
    if (!plan_.ignored.empty() && (a == kIgnored || b == kIgnored)) return kIgnored;
    while (a != b) {
      auto& deeper = depth(a) >= depth(b) ? a : b;
      deeper = plan_.units[static_cast<std::size_t>(deeper)].parent;
    }
    return a;
  }

  UnitPlan& plan_;
  const WrapPolicy& policy_;
  std::unordered_map<const torch::nn::Module*, int> seen_modules_;
  std::unordered_map<const void*, std::size_t> index_;
  std::unordered_map<const void*, std::pair<std::string, std::int64_t>> fields_;  // codec and bytes of a block
};

}  // namespace

UnitPlan plan_units(nn::HookedModule& root, const WrapPolicy& policy, const ModuleFilter& ignored) {
  if (!policy) throw ConfigError("fully_shard: the wrap policy is empty; use wrap_none() for one unit", "wrap");
  check_classes(policy, root);
  UnitPlan plan;
  plan.ignored = find_ignored(root, ignored);
  Planner planner(plan, policy);
  planner.visit("", root, -1);
  planner.mark_packed();
  return plan;
}

}  // namespace tessera::fsdp
