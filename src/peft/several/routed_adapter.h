#pragma once
// A layer's adapters, of which one computes at a time.
#include <map>
#include <memory>
#include <string>

#include "peft/several/adapter_choice.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/linear.h"

namespace tessera::peft {

/// Where the adapters' modules lie below a layer: "adapters.<name>.lora_A.default.weight".
inline const std::string kAdaptersOfLayer = "adapters";

/// A layer that the chosen adapter is not in stays as it is.
class RoutedLinear final : public nn::LinearAdapter {
 public:
  explicit RoutedLinear(std::shared_ptr<const AdapterChoice> choice);
  void add(int number, const std::string& name, std::shared_ptr<nn::LinearAdapter> adapter);
  std::string class_name() const override;
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override;

 private:
  std::shared_ptr<const AdapterChoice> choice_;
  nn::AdapterModule& place_;
  std::map<int, std::shared_ptr<nn::LinearAdapter>> adapters_;
};

class RoutedEmbedding final : public nn::EmbeddingAdapter {
 public:
  explicit RoutedEmbedding(std::shared_ptr<const AdapterChoice> choice);
  void add(int number, const std::string& name, std::shared_ptr<nn::EmbeddingAdapter> adapter);
  std::string class_name() const override;
  at::Tensor forward(const nn::Embedding& layer, const at::Tensor& ids) override;
  at::Tensor head_weight(const nn::Embedding& layer) override;

 private:
  std::shared_ptr<const AdapterChoice> choice_;
  nn::AdapterModule& place_;
  std::map<int, std::shared_ptr<nn::EmbeddingAdapter>> adapters_;
};

}  // namespace tessera::peft
