#include "models/names_in_files.h"

#include <algorithm>
#include <array>

#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

constexpr std::array kTables = {"model.embed_tokens.weight",
                                "transformer.wte.weight",
                                "model.decoder.embed_tokens.weight",
                                "transformer.word_embeddings.weight",
                                "gpt_neox.embed_in.weight",
                                "shared.weight",
                                "bert.embeddings.word_embeddings.weight",
                                "roberta.embeddings.word_embeddings.weight",
                                "electra.embeddings.word_embeddings.weight",
                                "deberta.embeddings.word_embeddings.weight",
                                "distilbert.embeddings.word_embeddings.weight"};
constexpr std::array kHeads = {"lm_head.weight",         "embed_out.weight",         "cls.predictions.decoder.weight",
                               "lm_head.decoder.weight", "generator_lm_head.weight", "vocab_projector.weight"};
constexpr const char* kSharedByT5 = "shared.weight";
constexpr std::array kCopiesOfT5 = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
/// Now, and under their other name: biases that stand in a head and in its matrix; what the first BERT files said.
constexpr std::array<std::pair<const char*, const char*>, 4> kEnds = {
    {{"cls.predictions.bias", "cls.predictions.decoder.bias"},
     {"lm_head.bias", "lm_head.decoder.bias"},
     {".LayerNorm.weight", ".LayerNorm.gamma"},
     {".LayerNorm.bias", ".LayerNorm.beta"}}};

std::vector<std::string> names_of(const nn::HookedModule& model) {
  std::vector<std::string> out;
  for (const auto& item : model.named_parameters()) out.push_back(item.key());
  return out;
}

bool is_any_of(const auto& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

NamesInFiles::NamesInFiles(const nn::HookedModule& model) : NamesInFiles(names_of(model)) {}

NamesInFiles::NamesInFiles(std::vector<std::string> parameters) : parameters_(parameters.begin(), parameters.end()) {
  for (const auto& parameter : parameters) {
    if (is_any_of(kTables, parameter)) {
      if (parameter == kSharedByT5)
        for (const char* copy : kCopiesOfT5) add_alias(copy, parameter);
      for (const char* head : kHeads) add_alias(head, parameter);
    }
    for (const auto& [now, other] : kEnds) {
      const std::string end = now;
      if (parameter.ends_with(end)) add_alias(parameter.substr(0, parameter.size() - end.size()) + other, parameter);
    }
  }
}

void NamesInFiles::add_alias(const std::string& name, const std::string& parameter) {
  if (parameters_.contains(name)) return;
  aliases_.emplace(name, parameter);
  other_names_[parameter].push_back(name);
}

bool NamesInFiles::is_table(const std::string& parameter) {
  return is_any_of(kTables, parameter) || is_any_of(kHeads, parameter);
}

std::string NamesInFiles::body() const {
  for (const std::string table : kTables)
    if (table != kSharedByT5 && parameters_.contains(table)) return table.substr(0, table.find('.') + 1);
  return {};
}

bool NamesInFiles::is_of_head(const std::string& parameter) const {
  return !parameter.starts_with(body());
}

std::string NamesInFiles::parameter_of(const std::string& name) const {
  if (parameters_.contains(name)) return name;
  const auto found = aliases_.find(name);
  return found == aliases_.end() ? std::string() : found->second;
}

std::string NamesInFiles::bias_of_matrix(const std::string& parameter) const {
  const auto others = other_names_.find(parameter);
  if (others == other_names_.end()) return {};
  const std::string end = "decoder.bias";
  for (const auto& name : others->second) {
    if (!name.ends_with(end)) continue;
    if (parameters_.contains(name.substr(0, name.size() - end.size()) + "decoder.weight")) return name;
  }
  return {};
}

std::vector<std::string> NamesInFiles::to_write(const std::string& parameter) const {
  const auto bias = bias_of_matrix(parameter);
  return bias.empty() ? std::vector{parameter} : std::vector{parameter, bias};
}

std::string NamesInFiles::in(const io::TensorSource& source, const std::string& parameter) const {
  if (const auto bias = bias_of_matrix(parameter); !bias.empty() && source.find(bias)) return bias;
  if (source.find(parameter)) return parameter;
  const auto last = parameter.rfind('.');
  if (last != std::string::npos) {
    const auto wrapped = parameter.substr(0, last) + ".base_layer" + parameter.substr(last);
    if (source.find(wrapped)) return wrapped;
  }
  if (const auto others = other_names_.find(parameter); others != other_names_.end()) {
    for (const auto& name : others->second)
      if (source.find(name)) return name;
  }
  if (is_any_of(kHeads, parameter)) {  // a head that was untied here
    for (const char* table : kTables)
      if (source.find(table)) return table;
  }
  const auto first = parameter.find('.');
  const auto bare = first == std::string::npos ? std::string() : parameter.substr(first + 1);
  return !bare.empty() && source.find(bare) ? bare : std::string();
}

}  // namespace tessera::models
