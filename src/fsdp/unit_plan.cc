#include "fsdp/unit_plan.h"

#include <map>
#include <unordered_map>

#include "fsdp/wrap_classes.h"

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
      if (added) plan_.parameters.push_back({prefix + p.key(), p.value(), unit});
      auto& owner = plan_.parameters[found->second].unit;
      owner = common_ancestor(owner, unit);
    }
    for (const auto& child : module.named_children()) visit(prefix + child.key(), *child.value(), unit);
  }

 private:
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
};

}  // namespace

UnitPlan plan_units(nn::HookedModule& root, const WrapPolicy& policy, const ModuleFilter& ignored) {
  if (!policy) throw ConfigError("fully_shard: the wrap policy is empty; use wrap_none() for one unit", "wrap");
  check_classes(policy, root);
  UnitPlan plan;
  plan.ignored = find_ignored(root, ignored);
  Planner(plan, policy).visit("", root, -1);
  return plan;
}

}  // namespace tessera::fsdp
