#pragma once
// The tiny Llama of the goldens with an adapter.
#include <torch/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "peft/adapter_config.h"
#include "tasks/assemble.h"

namespace tessera::tasks {

inline const std::string kLlama = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/base_llama";

/// keys: of adapter_config.json.
inline AssembleOptions adapted_llama(const nlohmann::json& keys) {
  return {.model_folder = kLlama, .method = peft::read_peft_keys(keys, "the test")};
}

/// Of two rows, in eval mode.
inline at::Tensor logits_of(const Assembled& a) {
  a.model->eval();
  const at::NoGradGuard no_grad;
  models::ModelInput in;
  in.input_ids = (at::arange(18) * 5 % 43 + 3).view({2, 9});
  return (*a.model)(in).logits;
}

}  // namespace tessera::tasks
