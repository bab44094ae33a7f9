#pragma once
// What the linear layers of a model are given, for methods that begin with it.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "models/model.h"
#include "peft/eva/eva_settings.h"

namespace tessera::peft {

class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual bool wants(std::size_t layer) const = 0;
  /// rows: [tokens that count, in_features], of this rank's batch. Called in each forward, in the layers' order.
  virtual void see(std::size_t layer, const at::Tensor& rows) = 0;
};

/// From now on the observer, which must live as long, sees the inputs of these linear layers of a model without
/// adapters. Tokens count that are no padding and, with use_label_mask, whose label does; a batch whose labels are of
/// rows (a classifier's) has no such mask.
void observe_inputs(models::Model& model, const std::vector<std::string>& layers, const EvaSettings& settings,
                    InputObserver& observer, std::int64_t vocab_size);

}  // namespace tessera::peft
