#include "tasks/export_gguf_adapter.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <vector>

#include "io/gguf_writer.h"
#include "models/check_sizes.h"
#include "models/gguf_export.h"
#include "models/gguf_layout.h"
#include "models/gguf_names.h"
#include "peft/adapter_config.h"
#include "peft/methods/lora.h"
#include "tasks/export_gguf.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {
namespace {

/// The two factors of one module, by their names in the adapter's file.
struct Factors {
  std::string module;
  bool is_embedding = false;
  const io::TensorInfo *a = nullptr, *b = nullptr;
};

std::unique_ptr<peft::PeftMethod> lora_of(const std::string& folder) {
  auto method = peft::read_adapter_config(folder);
  const auto* lora = dynamic_cast<const peft::Lora*>(method.get());
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("'{}': {}; --merge folds it into its model and writes that", folder, why), "gguf");
  };
  if (!lora) refuse("a GGUF adapter is LoRA, found peft_type " + method->type());
  if (lora->init_lora_weights.starts_with("pissa") || lora->init_lora_weights == "olora")
    refuse("init_lora_weights " + lora->init_lora_weights + " takes a part off the base, which a GGUF adapter cannot");
  if (!lora->layer_replication.is_null())
    refuse("layer_replication: a GGUF adapter is for the layers as the base has them");
  if (!lora->alora_invocation_tokens.is_null())
    throw ConfigError("'" + folder +
                          "': alora_invocation_tokens: an adapter that acts from a token on is neither a GGUF adapter "
                          "nor part of merged weights; 'tessera generate --adapter' answers with the folder as it is",
                      "gguf");
  return method;
}

/// In the file's order.
std::vector<Factors> factors_in(const io::TensorSource& weights) {
  std::vector<Factors> out;
  std::map<std::string, std::size_t> places;
  for (const io::TensorInfo& info : weights.tensors()) {
    std::string name = info.name;
    if (const auto at = name.find(".default"); at != std::string::npos) name.erase(at, 8);
    const std::string prefix = "base_model.model.";
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
    if (name.ends_with(".base_layer.weight")) continue;  // the base's own
    const auto find = [&](const std::string& a, const std::string& b, bool is_embedding) {
      for (const std::string& end : {a, b}) {
        if (!name.ends_with(end)) continue;
        const std::string module = name.substr(0, name.size() - end.size());
        const auto [place, is_new] = places.try_emplace(module, out.size());
        if (is_new) out.push_back({.module = module, .is_embedding = is_embedding});
        (end == a ? out[place->second].a : out[place->second].b) = &info;
        return true;
      }
      return false;
    };
    if (find(".lora_A.weight", ".lora_B.weight", false) || find(".lora_embedding_A", ".lora_embedding_B", true))
      continue;
    throw ConfigError(
        fmt::format("{}: tensor '{}' is neither lora_A nor lora_B, and a GGUF adapter holds nothing else; "
                    "--merge folds the adapter into its model and writes that",
                    info.file, info.name),
        "gguf");
  }
  for (const Factors& f : out) {
    if (f.a && f.b && f.a->shape.size() == 2 && f.b->shape.size() == 2 && f.a->shape[0] == f.b->shape[1]) continue;
    throw DataError(
        fmt::format("the adapter of '{}' needs lora_A [rank, inputs] and lora_B [outputs, rank]", f.module));
  }
  return out;
}

class AdapterWriter {
 public:
  explicit AdapterWriter(const GgufAdapterRequest& r)
      : r_(r),
        config_(families::parse_config(models::read_described_config(r.model_folder), r.model_folder + "/config.json")),
        model_(models::gguf_subject(config_)),
        method_(lora_of(r.adapter_folder)),
        lora_(dynamic_cast<const peft::Lora&>(*method_)),
        factors_(factors_in(*r.weights)) {}

  std::string write() {
    std::vector<io::GgufTensorPlan> plans;
    std::vector<models::GgufPlace> places;
    for (const Factors& f : factors_) {
      places.push_back(place_of(f));
      auto a = f.a->shape;
      if (f.is_embedding) std::swap(a[0], a[1]);  // its rows are looked up
      for (const auto& [end, shape] : {std::pair(".lora_a", a), std::pair(".lora_b", f.b->shape)})
        plans.push_back({places.back().stored + end, shape, models::gguf_matrix_type(r_.form, shape.back())});
    }
    io::GgufWriter writer(r_.output, metadata(), plans);
    for (std::size_t i = 0; i < factors_.size(); ++i) {
      writer.write(values_of_a(factors_[i]).const_data_ptr<float>());
      writer.write(values_of_b(factors_[i], places[i]).const_data_ptr<float>());
    }
    writer.commit();
    return fmt::format("adapter of {} tensors for {} saved in {}\n", plans.size(), architecture(), r_.output);
  }

 private:
  std::string architecture() const { return models::gguf_architecture(model_.family); }

  /// What llama.cpp divides by the rank.
  double alpha() const {
    return lora_.use_rslora ? lora_.lora_alpha * std::sqrt(static_cast<double>(lora_.r)) : lora_.lora_alpha;
  }

  io::GgufMetadata metadata() const {
    return {{"general.architecture", architecture()},
            {"general.type", std::string("adapter")},
            {"adapter.type", std::string("lora")},
            {"general.name", gguf_title(r_.adapter_folder)},
            {"adapter.lora.alpha", static_cast<float>(alpha())},
            {"general.file_type", gguf_file_type(r_.form)},
            {"general.quantization_version", std::uint32_t{2}}};
  }

  models::GgufPlace place_of(const Factors& f) const {
    const std::string name = f.module + ".weight";
    const auto place = models::gguf_place(model_.family, name);
    if (!place || place->stored.empty())
      throw DataError(fmt::format("{}: '{}' is no matrix of architecture '{}'", f.a->file, name, model_.model_type),
                      f.a->file);
    if (place->expert >= 0)
      throw ConfigError(
          fmt::format(
              "'{}' is one of a layer's experts, which a GGUF file has as one tensor; --merge folds the adapter "
              "into its model and writes that",
              f.module),
          "gguf");
    if (model_.tied && f.module == model_.head)
      throw ConfigError(
          "the head is the table of tokens (tie_word_embeddings), and a GGUF file has no adapter for one "
          "of the two; --merge writes them as two",
          "gguf");
    return *place;
  }

  at::Tensor values_of_a(const Factors& f) const {
    const auto a = io::read_tensor(*r_.weights, f.a->name).to(at::kFloat);
    return (f.is_embedding ? a.t() : a).contiguous();
  }

  at::Tensor values_of_b(const Factors& f, const models::GgufPlace& place) const {
    auto b = io::read_tensor(*r_.weights, f.b->name).to(at::kFloat).contiguous();
    const double scaling = lora_.scaling_of(f.module), stated = alpha() / static_cast<double>(b.size(1));
    if (scaling != stated) b = b * (scaling / stated);
    if (f.module == model_.head) b = b * model_.head_scale;
    const auto row = models::moved_rows(place.arrangement, b.size(0), model_.heads);
    if (!row) return b;
    auto moved = at::empty_like(b);
    for (std::int64_t i = 0; i < b.size(0); ++i) moved.select(0, row(i)).copy_(b.select(0, i));
    return moved;
  }

  const GgufAdapterRequest& r_;
  const families::FamilyConfig config_;
  const models::GgufSubject model_;
  const std::unique_ptr<peft::PeftMethod> method_;
  const peft::Lora& lora_;
  const std::vector<Factors> factors_;
};

}  // namespace

std::string write_gguf_adapter(const GgufAdapterRequest& request) {
  return AdapterWriter(request).write();
}

}  // namespace tessera::tasks
