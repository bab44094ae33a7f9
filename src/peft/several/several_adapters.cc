#include "peft/several/several_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "io/renamed_source.h"
#include "peft/adapter_config.h"
#include "peft/adapter_files.h"
#include "peft/apply.h"
#include "peft/methods/lora.h"
#include "peft/methods/oft.h"
#include "peft/several/routed_adapter.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

[[noreturn]] void refuse(const AdapterFolder& adapter, const std::string& key, const std::string& why) {
  const auto place = adapter.folder.empty() ? std::string() : " (" + adapter.folder + ")";
  throw ConfigError(fmt::format("adapter '{}'{}: {}; with several adapters it cannot be used, alone it can",
                                adapter.name, place, why),
                    key);
}

void check_settings(const AdapterFolder& adapter, const PeftMethod& method) {
  if (method.bias != "none") refuse(adapter, "bias", "bias is '" + method.bias + "', so it changes the base model");
  if (!method.modules_to_save.empty() || method.task_type == "SEQ_CLS")
    refuse(adapter, "modules_to_save", "it trains whole modules of the base model (modules_to_save)");
  const auto* lora = dynamic_cast<const Lora*>(&method);
  if (lora && !lora->layer_replication.is_null())
    refuse(adapter, "layer_replication", "it runs layers of the base model several times (layer_replication)");
}

/// What a method adds must lie below layers, where rows choose.
void check_sits_in_layers(const AdapterFolder& adapter, const models::Model& model, const PeftMethod& method) {
  const auto type = method.type();
  if (model.input_adapter())
    refuse(adapter, "peft_type", type + " changes what the model reads (virtual tokens, invocations)");
  for (const auto& child : model.named_children()) {
    if (dynamic_cast<const nn::AdapterModule*>(child.value().get()))
      refuse(adapter, "peft_type", type + " shares tensors between layers");
  }
  if (adapted_slots(model).empty()) refuse(adapter, "peft_type", type + " trains the base model's own weights");
  if (!method.from_weights_of_saved(model).empty())
    refuse(adapter, "init_lora_weights", "it begins with a part of the base model's weights");
}

void check_trains(const AdapterFolder& adapter, const PeftMethod& method) {
  if (method.type() == "ADALORA") refuse(adapter, "peft_type", "AdaLoRA takes ranks away as its own run goes on");
  const auto* oft = dynamic_cast<const Oft*>(&method);
  if (oft && oft->coft) refuse(adapter, "coft", "COFT projects its blocks at each step of its own run");
  const auto* lora = dynamic_cast<const Lora*>(&method);
  const std::vector<std::string> drawn = {"true", "false", "gaussian", "orthogonal"};
  if (lora && adapter.folder.empty() && std::find(drawn.begin(), drawn.end(), lora->init_lora_weights) == drawn.end())
    refuse(adapter, "init_lora_weights",
           "init_lora_weights " + lora->init_lora_weights + " begins with the base model's weights or rows");
}

}  // namespace

struct SeveralAdapters::Places {
  std::map<std::string, std::shared_ptr<RoutedLinear>> linears;
  std::map<std::string, std::shared_ptr<RoutedEmbedding>> embeddings;
};

SeveralAdapters::SeveralAdapters(models::Model& model, const models::ModelConfig& family,
                                 const std::vector<AdapterFolder>& folders, const MakeSkeleton& make_skeleton,
                                 Training training)
    : choice_(std::make_shared<AdapterChoice>()) {
  Places places;
  for (auto& p : model.parameters()) p.set_requires_grad(false);
  for (const auto& adapter : folders) take(adapter, family, make_skeleton(), places, training);
  for (const auto& slot : slots(model)) {
    if (const auto it = places.linears.find(slot.name); it != places.linears.end()) slot.linear->attach(it->second);
    if (const auto it = places.embeddings.find(slot.name); it != places.embeddings.end())
      slot.embedding->attach(it->second);
  }
  adapted_ = static_cast<std::int64_t>(places.linears.size() + places.embeddings.size());
}

void SeveralAdapters::take(const AdapterFolder& adapter, const models::ModelConfig& family,
                           std::shared_ptr<models::Model> skeleton, Places& places, Training training) {
  auto& model = *skeleton;
  const int number = static_cast<int>(names_.size());
  const std::shared_ptr<const PeftMethod> given =
      adapter.folder.empty() ? adapter.method : adapter_method(adapter.folder, model);
  if (adapter.folder.empty()) given->check_new();
  check_settings(adapter, *given);
  if (training == Training::kAll) check_trains(adapter, *given);
  const auto report = apply_adapter(model, family, *given);
  if (report.untied)
    refuse(adapter, "target_modules", "it adapts the head apart from the embedding that it is tied to");
  check_sits_in_layers(adapter, model, *report.method);
  std::optional<AdapterFile> file;
  if (!adapter.folder.empty()) file.emplace(adapter.folder, model, *report.method);
  const auto fills = report.method->first_values(model, adapter.seed);
  const auto prefix = adapter.name + "/";
  const auto slots_now = adapted_slots(model);
  std::map<std::string, std::string> names;
  for (const auto& slot : slots_now) {
    const auto routed = slot.name + "." + kAdaptersOfLayer + "." + adapter.name + ".";
    for (auto& [name, tensor] : slot.parameters()) {
      const auto parameter = slot.name + "." + name, stored = file ? file->source_name(parameter) : std::string();
      names[parameter] = routed + name;
      if (training == Training::kNone) tensor.set_requires_grad(false);
      if (!stored.empty()) source_names_[routed + name] = prefix + stored;
      if (const auto fill = fills.find(parameter); stored.empty() && fill != fills.end())
        fills_[routed + name] = fill->second;
    }
    if (slot.linear) {
      auto& place = places.linears[slot.name];
      if (!place) place = std::make_shared<RoutedLinear>(choice_);
      place->add(number, adapter.name, std::shared_ptr<nn::LinearAdapter>(skeleton, slot.linear->adapter()));
    } else {
      auto& place = places.embeddings[slot.name];
      if (!place) place = std::make_shared<RoutedEmbedding>(choice_);
      place->add(number, adapter.name, std::shared_ptr<nn::EmbeddingAdapter>(skeleton, slot.embedding->adapter()));
    }
  }
  names_.push_back(adapter.name);
  members_.push_back({adapter.name, skeleton, report.method, std::move(names), report.trainable});
  if (file)
    sources_.push_back(io::renamed_source(file->source(), [&](const std::string& stored) { return prefix + stored; }));
}

int SeveralAdapters::number_of(const std::string& name) const {
  if (name == kBaseModelName) return kBaseModel;
  const auto it = std::find(names_.begin(), names_.end(), name);
  if (it != names_.end()) return static_cast<int>(it - names_.begin());
  std::string all;
  for (const auto& known : names_) all += known + ", ";
  throw ConfigError(
      fmt::format("no adapter is named '{}'; there are {}and {} for the base model", name, all, kBaseModelName),
      "adapter");
}

std::shared_ptr<io::TensorSource> SeveralAdapters::joined_with(std::shared_ptr<const io::TensorSource> base) const {
  auto all = sources_;
  all.push_back(std::move(base));
  return io::joined_source(std::move(all));
}

std::string SeveralAdapters::source_name(const std::string& parameter) const {
  const auto it = source_names_.find(parameter);
  return it == source_names_.end() ? "" : it->second;
}

std::function<void(const std::string&, const at::Tensor&)> SeveralAdapters::init() const {
  return [fills = fills_](const std::string& name, const at::Tensor& parameter) {
    const auto fill = fills.find(name);
    if (fill == fills.end()) return;
    const auto values = parameter.detach();
    nn::allocate(values);
    fill->second(values);
  };
}

}  // namespace tessera::peft
