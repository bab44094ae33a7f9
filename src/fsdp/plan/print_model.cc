#include "fsdp/plan/print_model.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::fsdp {
namespace {

using UnitsByModule = std::unordered_map<const torch::nn::Module*, const Unit*>;

std::string describe_unit(const Unit& unit, int world_size) {
  std::string text;
  std::int64_t mapped = 0, mapped_numel = 0;
  for (const auto& p : unit.parameters())
    if (p.spec.mapped) ++mapped, mapped_numel += p.spec.numel();
  for (const auto& s : unit.segments()) {
    text +=
        fmt::format("{}{} {} parameters: shard {} x {} {}", text.empty() ? "" : "; ", s.entries.size(),
                    s.trainable ? "trainable" : "frozen", world_size, s.slice_numel, c10::toString(s.shard_dtype()));
    if (s.compute != s.shard_dtype()) text += fmt::format(", computed in {}", c10::toString(s.compute));
    text += fmt::format(", {}", unit.store().form());
  }
  if (mapped)
    text += fmt::format("{}{} frozen parameters: {} elements, mapped", text.empty() ? "" : "; ", mapped, mapped_numel);
  return text;
}

class Printer {
 public:
  Printer(const UnitsByModule& units, int world_size) : units_(units), world_size_(world_size) {}

  std::string print(const torch::nn::Module& module, const std::string& indent) {
    const auto unit = units_.find(&module);
    if (unit == units_.end()) return body(module, indent);
    const auto details = describe_unit(*unit->second, world_size_);
    const auto inner = indent + "  ";
    return "FullyShardedDataParallel(" + (details.empty() ? "" : "  # " + details) + "\n" + inner +
           "(_fsdp_wrapped_module): " + body(module, inner) + "\n" + indent + ")";
  }

 private:
  std::string body(const torch::nn::Module& module, const std::string& indent) {
    const auto* hooked = dynamic_cast<const nn::HookedModule*>(&module);
    const auto name = hooked ? hooked->class_name() : module.name();
    const auto extra = hooked ? hooked->extra_repr() : std::string();
    const auto children = module.named_children();
    if (children.is_empty()) return name + "(" + extra + ")";
    std::string text = name + "(\n";
    if (!extra.empty()) text += indent + "  " + extra + "\n";
    const auto inner = indent + "  ";
    std::vector<std::pair<std::string, std::string>> printed;  // key, text
    for (const auto& child : children) printed.emplace_back(child.key(), print(*child.value(), inner));
    for (std::size_t i = 0, end; i < printed.size(); i = end) {
      for (end = i + 1; end < printed.size() && follow(printed[end - 1], printed[end]);) ++end;
      const auto& [key, child] = printed[i];
      if (end == i + 1) {
        text += inner + "(" + key + "): " + child + "\n";
      } else {
        text += fmt::format("{}({}-{}): {} x {}\n", inner, key, printed[end - 1].first, end - i, child);
      }
    }
    return text + indent + ")";
  }

  /// Neighbours in a list that print the same, as PyTorch folds them.
  static bool follow(const std::pair<std::string, std::string>& a, const std::pair<std::string, std::string>& b) {
    const auto is_index = [](const std::string& key) {
      return !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
    };
    return is_index(a.first) && is_index(b.first) && a.second == b.second;
  }

  const UnitsByModule& units_;
  int world_size_;
};

}  // namespace

std::string print_model(const Runtime& runtime) {
  UnitsByModule units;
  std::string after;
  const auto& mesh = runtime.mesh();
  for (const auto& unit : runtime.units()) {
    units[unit->module()] = unit.get();
    if (unit->ignored()) after += "\nignored modules: " + describe_unit(*unit, mesh.shard->size());
  }
  if (mesh.replicate && mesh.shard->size() > 1)
    after += fmt::format("\n{} copies, each sharded over {} ranks", mesh.replicate->size(), mesh.shard->size());
  if (runtime.on_device())
    after += "\nunits compute on " + runtime.options().device.str() +
             (runtime.resident() ? ", where their parameters, gradients and optimizer state lie, too"
                                 : ", all else lies in host memory");
  return Printer(units, mesh.shard->size()).print(*runtime.units().front()->module(), "") + after;
}

}  // namespace tessera::fsdp
