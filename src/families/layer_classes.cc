#include "families/layer_classes.h"

namespace tessera::families {
namespace {

std::vector<std::string> classes_of(const T5Config& c) {
  return {c.class_prefix + "Block"};
}
std::vector<std::string> classes_of(const DecoderConfig& c) {
  return {c.classes.layer};
}
std::vector<std::string> classes_of(const BertConfig& c) {
  if (c.distilbert()) return {"TransformerBlock"};  // upstream names none, nor for ELECTRA, CamemBERT and DeBERTa
  if (c.is_deberta()) return {c.class_prefix + "Layer"};
  return {c.class_prefix + "Layer", c.class_prefix + "Embeddings", c.class_prefix + "SelfOutput"};
}

}  // namespace

std::vector<std::string> no_split_classes(const FamilyConfig& config) {
  return std::visit([](const auto& c) { return classes_of(c); }, config);
}

}  // namespace tessera::families
