#pragma once
#include <memory>
#include <string>

#include "peft/adapter_config.h"
#include "peft/apply.h"
#include "peft/methods/lora.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {

inline const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/";

struct Loaded {
  std::shared_ptr<models::Model> model;
  models::ModelConfig family;
  AdapterReport report;
};

inline Loaded load(const PeftMethod& method, const std::string& base) {
  Loaded out;
  out.model = models::build_model(kFolder + base, &out.family);
  models::load_weights(*out.model, *io::open_weights(kFolder + base));
  out.report = apply_adapter(*out.model, out.family, method);
  const auto init = adapter_init(*out.model, *out.report.method, 7);
  for (const auto& item : out.model->named_parameters()) init(item.key(), item.value());
  return out;
}

/// A folder's configuration, which is LoRA's.
inline Lora read_lora(const std::string& folder) {
  return dynamic_cast<const Lora&>(*read_adapter_config(folder));
}

}  // namespace tessera::peft
