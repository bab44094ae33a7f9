#pragma once
#include <memory>
#include <string>

#include "io/tensor_source.h"
#include "peft/lora.h"

namespace tessera::peft {

inline const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/";

struct Loaded {
  std::shared_ptr<models::Model> model;
  models::ModelConfig family;
  LoraReport report;
};

inline Loaded load(const LoraConfig& config, const std::string& base) {
  Loaded out;
  out.model = models::build_model(kFolder + base, &out.family);
  models::load_weights(*out.model, *io::open_weights(kFolder + base));
  out.report = apply_lora(*out.model, out.family, config);
  const auto init = adapter_init(*out.model, out.report.config, 7);
  for (const auto& item : out.model->named_parameters()) init(item.key(), item.value());
  return out;
}

}  // namespace tessera::peft
