#pragma once
// Linear layers of a model keep their weights packed: as a folder has them, or quantised while they are read.
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "families/quantization.h"
#include "models/model.h"
#include "quant/packed_source.h"

namespace tessera::models {

/// Before adapters are attached. Every linear layer whose weight the source has packed becomes a packed one, without
/// memory. Returns how many.
std::int64_t pack_as_stored(Model& model, const quant::PackedSource& source);

/// The source as the dense model wants it: values without statistics; weights of [in, out] layers (GPT-2's Conv1D),
/// whose codes are [out, in], are transposed as they are read.
std::shared_ptr<const io::TensorSource> unpacked_source(const Model& model,
                                                        std::shared_ptr<const io::TensorSource> source);

/// A source that quantises the weights of all linear layers but the output head, the head of a classifier, and what
/// transformers leaves as it is (T5's `wo`, skip_modules); these become packed layers. Values are
/// rounded to `rounded` before, as transformers loads weights in torch_dtype.
std::shared_ptr<const quant::PackedSource> pack_while_reading(Model& model, const ModelConfig& family,
                                                              const families::Quantization& settings,
                                                              std::shared_ptr<const io::TensorSource> source,
                                                              at::ScalarType rounded = at::kFloat);

/// The names of layers that pack_while_reading() packs.
std::set<std::string> layers_to_pack(const Model& model, const ModelConfig& family,
                                     const families::Quantization& settings);

}  // namespace tessera::models
