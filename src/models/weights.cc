#include <algorithm>
#include <set>

#include "formats/weight_names.h"
#include "models/model.h"
#include "models/names_in_files.h"
#include "tensor/shape_text.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/adapter.h"
#include "tessera/nn/init.h"

namespace tessera::models {

std::string few_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 5; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 5 ? text + " and " + std::to_string(names.size() - 5) + " more" : text;
}

std::vector<std::string> unused_weights(const nn::HookedModule& model, const io::TensorSource& source) {
  std::set<std::string> used;
  bool has_head = false;
  const NamesInFiles names(model);
  for (const auto& item : model.named_parameters()) {
    has_head = has_head || item.key() == "lm_head.weight" || item.key() == "embed_out.weight";
    used.insert(names.in(source, item.key()));
    for (auto& name : names.to_write(item.key())) used.insert(std::move(name));
  }
  std::vector<std::string> unused;
  for (const auto& info : source.tensors())
    if (!used.contains(info.name) && !is_ignorable_weight(info.name, has_head)) unused.push_back(info.name);
  return unused;
}

std::vector<std::string> missing_weights(const nn::HookedModule& model, const io::TensorSource& source) {
  std::vector<std::string> missing;
  const NamesInFiles names(model);
  const auto adapters = nn::adapter_parameters(model);
  for (const auto& item : model.named_parameters())
    if (!adapters.contains(item.key()) && names.in(source, item.key()).empty()) missing.push_back(item.key());
  return missing;
}

bool lacks_head_alone(const nn::HookedModule& model, const io::TensorSource& source) {
  const NamesInFiles names(model);
  const auto missing = missing_weights(model, source);
  return !missing.empty() &&
         std::all_of(missing.begin(), missing.end(), [&](const std::string& name) { return names.is_of_head(name); });
}

void check_weights(const nn::HookedModule& model, const io::TensorSource& source) {
  const std::string file = source.tensors().empty() ? "the weight file" : source.tensors().front().file;
  if (const auto missing = missing_weights(model, source); !missing.empty())
    throw DataError(file + " lacks the tensors " + few_of(missing), file);
  const NamesInFiles names(model);
  const auto adapters = nn::adapter_parameters(model);
  for (const auto& item : model.named_parameters()) {
    if (adapters.contains(item.key())) continue;
    const auto name = names.in(source, item.key());
    const auto& info = *source.find(name);
    if (item.value().sizes() != at::IntArrayRef(info.shape)) {
      throw DataError("tensor '" + name + "' in " + info.file + " has the shape " + tensor::shape_text(info.shape) +
                          ", the model's config.json asks for " + tensor::shape_text(item.value().sizes()),
                      info.file);
    }
  }
  if (const auto unused = unused_weights(model, source); !unused.empty()) {
    throw DataError(file + " holds tensors that this model does not have: " + few_of(unused) +
                        "; config.json and the weights do not belong together",
                    file);
  }
}

void load_weights(nn::HookedModule& model, const io::TensorSource& source) {
  check_weights(model, source);
  const NamesInFiles names(model);
  const auto adapters = nn::adapter_parameters(model);
  for (auto& item : model.named_parameters()) {
    if (adapters.contains(item.key())) continue;
    auto values = item.value().detach();
    nn::allocate(values);
    source.read(names.in(source, item.key()), 0, values.view({-1}));
  }
}

void init_weights(Model& model, std::uint64_t seed) {
  const auto adapters = nn::adapter_parameters(model);
  for (auto& item : model.named_parameters()) {
    if (adapters.contains(item.key())) continue;
    auto values = item.value().detach();
    nn::allocate(values);
    model.init_parameter(item.key(), values, tensor::named_key(seed, item.key()));
  }
}

}  // namespace tessera::models
