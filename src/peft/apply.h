#pragma once
// From a model and a method to an adapted model.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peft/method.h"

namespace tessera::peft {

struct AdapterReport {
  std::vector<std::string> adapted;    // module names
  std::vector<std::string> saved;      // those of modules_to_save
  std::shared_ptr<PeftMethod> method;  // as given, with everything resolved that depends on the model
  bool untied = false;                 // the output head got a matrix of its own
  std::vector<std::string> notes;      // names of target_modules that match nothing
  std::int64_t trainable = 0;
  std::int64_t total = 0;              // with a frozen copy of each of modules_to_save, as PEFT counts
  std::string trainable_line() const;  // "trainable params: 884,736 || all params: 223,788,288 || trainable%: 0.3953"
};

/// Freezes the model, puts the method's adapters (fp32, without memory yet) into it, and makes biases and
/// modules_to_save trainable. ConfigError when a name matches nothing (lists the module names there are).
AdapterReport apply_adapter(models::Model& model, const models::ModelConfig& family, const PeftMethod& method);

/// Gives a parameter of an adapter, by its name, memory and its first values, seeded by module name so that every rank
/// and world size draws the same; leaves others alone: fsdp::FsdpOptions::param_init_fn. What depends on the weights
/// comes later: see initialise_from_weights.
std::function<void(const std::string&, const at::Tensor&)> adapter_init(const nn::HookedModule& model,
                                                                        const PeftMethod& method, std::uint64_t seed);

/// First values that depend on the weights (PeftMethod::from_weights); unsharded, after the weights were loaded. No
/// seed: what a saved adapter's file does not hold.
void initialise_from_weights(nn::HookedModule& model, const PeftMethod& method, std::optional<std::uint64_t> seed);

}  // namespace tessera::peft
