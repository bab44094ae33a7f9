#include "tessera/nn/packed_weight.h"

#include <ATen/core/grad_mode.h>

#include "tensor/storage.h"
#include "tessera/nn/init.h"

namespace tessera::nn {

PackedWeight::PackedWeight(std::shared_ptr<const tensor::Codec> codec, at::Tensor weight)
    : torch::nn::Module("PackedWeight") {
  const at::NoGradGuard no_grad;
  tensor::PackedMatrix matrix{std::move(codec), weight.size(0), weight.size(1), {}};
  std::vector<at::Tensor> values;
  if (!tensor::is_detached(weight)) values = tensor::pack(matrix.codec, weight).fields;
  weight.set_requires_grad(false);
  for (const auto& field : matrix.codec->fields(matrix.rows, matrix.columns)) {
    const auto index = matrix.fields.size();
    const auto tensor = values.empty() ? make_parameter(field.shape, field.dtype) : values[index];
    if (field.is_codes()) weight.set_data(tensor);
    matrix.fields.push_back(field.is_codes() ? weight : register_parameter(field.name, tensor, false));
  }
  matrix_ = std::make_shared<const tensor::PackedMatrix>(std::move(matrix));
}

DenseElements::DenseElements(const torch::nn::Module& root) {
  for (const auto& item : root.named_modules()) {
    const auto* packed = dynamic_cast<const PackedWeight*>(item.value().get());
    if (!packed) continue;
    const auto& matrix = *packed->matrix();
    for (const auto& field : matrix.codec->fields(matrix.rows, matrix.columns)) {
      packed_[field.full_name(item.key())] = field.is_codes() ? matrix.rows * matrix.columns : 0;
    }
  }
}

std::int64_t DenseElements::of(const std::string& name, const at::Tensor& parameter) const {
  const auto found = packed_.find(name);
  return found == packed_.end() ? parameter.numel() : found->second;
}

}  // namespace tessera::nn
