#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/pattern.h"
#include "fsdp/plan/wrap_classes.h"

namespace tessera::fsdp {
namespace {

using SeenTensors = std::unordered_set<const void*>;

/// Elements of the parameters that modules wrapped below leave over.
std::int64_t left_over(const torch::nn::Module& module, std::int64_t min_num_params, SeenTensors& seen) {
  std::int64_t n = 0;
  for (const auto& p : module.named_parameters(/*recurse=*/false))
    if (p.value().defined() && seen.insert(p.value().unsafeGetTensorImpl()).second) n += p.value().numel();
  for (const auto& child : module.children()) {
    const auto below = left_over(*child, min_num_params, seen);
    const bool wrapped = below >= min_num_params && dynamic_cast<const nn::HookedModule*>(child.get());
    if (!wrapped) n += below;
  }
  return n;
}

}  // namespace

bool WrapClasses::operator()(const std::string&, const nn::HookedModule& module) const {
  return std::find(names.begin(), names.end(), module.class_name()) != names.end();
}

void WrapClasses::check_matches(const nn::HookedModule& root) const {
  std::set<std::string> present;
  for (const auto& m : root.modules(/*include_self=*/false))
    if (const auto* hooked = dynamic_cast<const nn::HookedModule*>(m.get())) present.insert(hooked->class_name());
  for (const auto& name : names) {
    if (present.contains(name)) continue;
    std::string known;
    for (const auto& p : present) known += (known.empty() ? "" : ", ") + p;
    throw ConfigError("wrap policy: no module of class '" + name + "' in " + root.class_name() +
                          "; its classes are: " + (known.empty() ? "none" : known),
                      "fsdp_transformer_layer_cls_to_wrap");
  }
}

bool WrapPeft::operator()(const std::string& name, const nn::HookedModule& module) const {
  if (classes(name, module)) return true;
  if (!module.children().empty()) return false;
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const auto* weight = parameters.find("weight");
  return weight && weight->defined() && weight->requires_grad();
}

void check_classes(const WrapPolicy& policy, const nn::HookedModule& root) {
  if (const auto* classes = policy.target<WrapClasses>()) classes->check_matches(root);
  if (const auto* peft = policy.target<WrapPeft>()) peft->classes.check_matches(root);
  if (const auto* nth = policy.target<EveryNth>()) check_classes(nth->policy, root);
}

WrapPolicy wrap_none() {
  return [](const std::string&, const nn::HookedModule&) { return false; };
}

WrapPolicy wrap_classes(std::vector<std::string> class_names) {
  return WrapClasses{std::move(class_names)};
}

WrapPolicy same_as_wrap() {
  return SameAsWrap{};
}

WrapPolicy every_nth(std::int64_t n, WrapPolicy policy) {
  if (n < 1) throw ConfigError("every_nth: expected at least 1, found " + std::to_string(n));
  return EveryNth{n, std::move(policy)};
}

std::int64_t recomputed_every(const WrapPolicy& policy) {
  if (!policy) return 0;
  const auto* nth = policy.target<EveryNth>();
  return nth ? nth->n : 1;
}

WrapPolicy wrap_size(std::int64_t min_num_params) {
  return [min_num_params](const std::string&, const nn::HookedModule& module) {
    SeenTensors seen;
    return min_num_params > 0 && left_over(module, min_num_params, seen) >= min_num_params;
  };
}

WrapPolicy wrap_peft(std::vector<std::string> class_names) {
  return WrapPeft{{std::move(class_names)}};
}

ModuleFilter named_like(const std::string& pattern) {
  return [expression = Pattern(pattern, "fsdp_ignored_modules")](const std::string& name, const torch::nn::Module&) {
    return expression.matches(name);
  };
}

}  // namespace tessera::fsdp
