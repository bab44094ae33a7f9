#pragma once
// SHiRA (Bhardwaj et al. 2024): W + S, S zero but for r (in + out) trained numbers, at places that a seed chooses. The
// file holds the places: another mask than the random one is known from there.
#include "nn/ops/sparse_delta.h"
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Shira final : public DeltaMethod {
 public:
  std::int64_t r = 32;
  std::string mask_type = "random";
  nlohmann::json random_seed;  // null: torch's first state of a generator
  bool init_weights = true;    // zeros; false: normal

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Shira>(*this); }
  std::string type() const override { return "SHIRA"; }
  std::string class_name() const override { return "shira.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void check_new() const override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  /// The layers' places, int32 [2, n].
  Values in_file(const Values& adapters) const override;
  /// Takes the places from the file.
  std::shared_ptr<const io::TensorSource> readable(std::shared_ptr<const io::TensorSource> file) const override;
  /// Where the numbers of a layer stand: in a file's order, or else row by row.
  nn::SparsePlacesPtr places(const LayerSizes& layer) const;

 protected:
  at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const override;
  bool takes_transposed() const override { return false; }

 private:
  std::int64_t count_of(const LayerSizes& layer) const;
  nn::SparsePlacesPtr drawn(const LayerSizes& layer) const;

  /// Of a model's layers, by name.
  struct Layers {
    std::map<std::string, LayerSizes> sizes;
    std::map<std::string, nn::SparsePlacesPtr> from_file;  // those that are not the drawn ones
  };
  std::shared_ptr<Layers> layers_ = std::make_shared<Layers>();
};

}  // namespace tessera::peft
