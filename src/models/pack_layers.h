#pragma once
// Linear layers of a model keep their weights packed: as a folder has them, or quantised while they are read.
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "families/quantization.h"
#include "models/model.h"
#include "quant/packed_source.h"

namespace tessera::models {

/// Before adapters are attached. Every linear layer whose weight the source has packed becomes a packed one, without
/// memory, whose products compute as nn::Linear::pack() says. Returns how many.
std::int64_t pack_as_stored(Model& model, const quant::PackedSource& source,
                            std::optional<at::ScalarType> compute = {});

/// Of linear layers, by name.
using LayerChoice = std::function<bool(const std::string& layer)>;
inline bool every_layer(const std::string&) {
  return true;
}
inline bool no_layer(const std::string&) {
  return false;
}

/// The source as layers want it that are to be dense: values without statistics; weights of [in, out] layers (GPT-2's
/// Conv1D), whose codes are [out, in], are transposed as they are read. What is no linear layer's is dense, too.
std::shared_ptr<const quant::PackedSource> unpacked_source(const Model& model,
                                                           std::shared_ptr<const quant::PackedSource> source,
                                                           const LayerChoice& dense = every_layer);

/// A source that quantises, in 4 bits or in 8, the weights of all linear layers but the head of a classifier and what
/// transformers leaves as it is: T5's `wo`, skip_modules, and without these the output head. These become packed
/// layers, but for those that are to be dense. Values are rounded to `rounded` before, as transformers loads weights in
/// torch_dtype. compute: as above.
std::shared_ptr<const quant::PackedSource> pack_while_reading(Model& model, const ModelConfig& family,
                                                              const families::Quantization& settings,
                                                              std::shared_ptr<const io::TensorSource> source,
                                                              at::ScalarType rounded = at::kFloat,
                                                              const LayerChoice& dense = no_layer,
                                                              std::optional<at::ScalarType> compute = {});
/// What the settings say of products with weights of 4 bits; unset for other forms.
std::optional<at::ScalarType> compute_dtype(const families::Quantization& settings);

/// ConfigError, which names `folder`, where the source has one of these layers in blocks of few bits (GGUF): packed
/// again, its values would be rounded twice.
void check_not_packed(const Model& model, const std::set<std::string>& layers, const quant::PackedSource& source,
                      const std::string& folder);

/// As the codecs take them. ConfigError for forms that are only read.
quant::PackedSettings packed_settings(const families::Quantization& settings);
/// How a folder stores them whose values are of this dtype.
quant::FileForm file_form(const families::Quantization& settings, at::ScalarType dtype);

/// The names of layers that pack_while_reading() packs.
std::set<std::string> layers_to_pack(const Model& model, const ModelConfig& family,
                                     const families::Quantization& settings);
/// What config.json must say of skip_modules, so that transformers leaves the same layers dense; unset: nothing.
std::optional<std::vector<std::string>> stated_skip_modules(const Model& model, const ModelConfig& family,
                                                            const families::Quantization& settings);

}  // namespace tessera::models
