#include "models/pack_layers.h"

#include <algorithm>

#include "models/names_in_files.h"
#include "tessera/base/error.h"
#include "tessera/nn/linear.h"

namespace tessera::models {
namespace {

std::map<std::string, nn::Linear*> linear_layers(const Model& model) {
  std::map<std::string, nn::Linear*> out;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto* linear = dynamic_cast<nn::Linear*>(item.value().get())) out.emplace(item.key(), linear);
  return out;
}

/// transformers' rule: the layer's own name, its whole name, or the end of one above it ("attn" for self_attn's
/// layers).
bool names_layer(const std::string& wanted, const std::string& name) {
  return wanted == name || wanted == name.substr(name.rfind('.') + 1) || name.find(wanted + ".") != std::string::npos;
}

/// Of modules that stay dense; the last ones are heads that train with an adapter, where the model has them.
std::vector<std::string> names_of_skipped(const Model& model, const ModelConfig& family,
                                          const families::Quantization& settings) {
  auto names = settings.skip_modules.value_or(std::vector{family.output_embedding});
  const auto layers = linear_layers(model);
  for (const char* head : {"score", "classifier", "cls"}) {
    const bool has =
        std::any_of(layers.begin(), layers.end(), [&](const auto& l) { return names_layer(head, l.first); });
    if (has && std::find(names.begin(), names.end(), head) == names.end()) names.emplace_back(head);
  }
  if (settings.skip_modules) return names;
  // As in transformers, all of the module that ends in the head: RoBERTa's lm_head has a layer before it.
  const auto top = family.output_embedding.substr(0, family.output_embedding.find('.'));
  if (std::find(names.begin(), names.end(), top) == names.end()) names.push_back(top);
  return names;
}

}  // namespace

std::optional<std::vector<std::string>> stated_skip_modules(const Model& model, const ModelConfig& family,
                                                            const families::Quantization& settings) {
  auto names = names_of_skipped(model, family, settings);
  if (!settings.skip_modules && names.size() == 1) return std::nullopt;
  return names;
}

std::int64_t pack_as_stored(Model& model, const quant::PackedSource& source, std::optional<at::ScalarType> compute) {
  const NamesInFiles names(model);
  std::int64_t packed = 0;
  for (const auto& [name, linear] : linear_layers(model)) {
    const auto codec = source.codec(names.in(source, name + ".weight"));
    if (!codec) continue;
    linear->pack(codec, compute);
    ++packed;
  }
  return packed;
}

std::shared_ptr<const quant::PackedSource> unpacked_source(const Model& model,
                                                           std::shared_ptr<const quant::PackedSource> source,
                                                           const LayerChoice& dense) {
  const NamesInFiles names(model);
  std::set<std::string> unpacked, transposed, kept;
  for (const auto& [name, linear] : linear_layers(model)) {
    const auto stored = names.in(*source, name + ".weight");
    if (!source->codec(stored)) continue;
    (dense(name) ? unpacked : kept).insert(stored);
    const bool turned = linear->weight_layout() == nn::WeightLayout::kInOut && !source->is_also_dense();
    if (dense(name) && turned) transposed.insert(stored);
  }
  for (const auto& info : source->tensors())  // of other modules: tables
    if (source->codec(info.name) && !kept.contains(info.name)) unpacked.insert(info.name);
  return quant::unpacked_source(std::move(source), std::move(unpacked), std::move(transposed));
}

std::set<std::string> layers_to_pack(const Model& model, const ModelConfig& family,
                                     const families::Quantization& settings) {
  auto skipped = names_of_skipped(model, family, settings);
  if (family.kind == ModelKind::kSeq2Seq) skipped.emplace_back("wo");
  std::set<std::string> out;
  for (const auto& [name, linear] : linear_layers(model)) {
    const bool skips = std::any_of(skipped.begin(), skipped.end(),
                                   [&, &layer = name](const std::string& s) { return names_layer(s, layer); });
    if (!skips) out.insert(name);
  }
  return out;
}

void check_not_packed(const Model& model, const std::set<std::string>& layers, const quant::PackedSource& source,
                      const std::string& folder) {
  const NamesInFiles names(model);
  for (const auto& layer : layers) {
    const auto codec = source.codec(names.in(source, layer + ".weight"));
    if (!codec) continue;
    throw ConfigError(
        "'" + folder + "': '" + layer + "' is packed already (" + codec->name() +
            "), and values that are packed twice are rounded twice. Leave the packing out, since an adapter "
            "trains over such a file as it is, or name the model that it was made from",
        "quantization");
  }
}

quant::PackedSettings packed_settings(const families::Quantization& settings) {
  if (settings.form == families::PackedForm::kInt8) return quant::Int8Settings{settings.int8_threshold};
  if (settings.form != families::PackedForm::kFourBit)
    throw ConfigError("config.json says that the weights are packed as " + families::form_name(settings.form) +
                          ", but they are dense, and that form is only read: remove 'quantization_config', or name the "
                          "folder with the packed weights",
                      "quantization_config");
  return quant::FourBitSettings{.type = quant::four_bit_type(settings.quant_type).value(),
                                .nested = settings.double_quant};
}

quant::FileForm file_form(const families::Quantization& settings, at::ScalarType dtype) {
  quant::FileForm form{packed_settings(settings), dtype, at::kByte};
  if (settings.form == families::PackedForm::kFourBit)
    form.storage = c10::getStringToDtypeMap().at(settings.quant_storage);
  return form;
}

std::optional<at::ScalarType> compute_dtype(const families::Quantization& settings) {
  if (settings.form != families::PackedForm::kFourBit) return std::nullopt;
  return c10::getStringToDtypeMap().at(settings.compute_dtype);
}

std::shared_ptr<const quant::PackedSource> pack_while_reading(Model& model, const ModelConfig& family,
                                                              const families::Quantization& settings,
                                                              std::shared_ptr<const io::TensorSource> source,
                                                              at::ScalarType rounded, const LayerChoice& dense,
                                                              std::optional<at::ScalarType> compute) {
  const NamesInFiles names(model);
  const auto layers = linear_layers(model);
  const auto form = packed_settings(settings);
  std::map<std::string, quant::MatrixPacking> packings;
  std::map<std::string, std::string> stored_names;
  for (const auto& name : layers_to_pack(model, family, settings)) {
    const auto stored = names.in(*source, name + ".weight");
    if (stored.empty() || dense(name)) continue;
    packings[stored] = {form, rounded, layers.at(name)->weight_layout() == nn::WeightLayout::kInOut};
    stored_names[name] = stored;
  }
  const auto packing = quant::packing_source(std::move(source), std::move(packings));
  for (const auto& [name, stored] : stored_names) layers.at(name)->pack(packing->codec(stored), compute);
  return packing;
}

}  // namespace tessera::models
