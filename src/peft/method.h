#pragma once
// A method of parameter-efficient fine-tuning: one file each, and one row in method.cc. A method is its settings and
// what follows from them; it keeps no tensors. Parameter names in the module tree are PEFT's without the prefix
// "base_model.model.", with the adapter's name "default":
//   the base keeps its name "...q.weight" (files that say "...q.base_layer.weight" are read too);
//   modules_to_save are trained in place: no frozen copy is kept, the adapter file holds the trained values.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "peft/config.h"
#include "peft/config_keys.h"
#include "peft/slots.h"

namespace tessera::io {
class TensorSource;
}

namespace tessera::peft {

/// Whole values by parameter name.
using Values = std::map<std::string, at::Tensor>;
/// Writes a parameter's first values.
using Fill = std::function<void(const at::Tensor&)>;

/// First values that follow from a weight of the base model, known once that is loaded.
struct FromWeight {
  std::string weight;  // its full name
  /// weight, whole; adapters: every adapter's values, whole. Result: new values of parameters, by full name.
  std::function<Values(const at::Tensor& weight, const Values& adapters)> values;
  /// Instead of that where it needs, beside a packed weight, what that was made of as the folder has it.
  std::function<Values(const at::Tensor& weight, const at::Tensor& stored)> with_stored = {};
  bool reads_adapters = false;  // values() does; else they may be none
};

class PeftMethod : public PeftConfig {
 public:
  virtual ~PeftMethod() = default;
  virtual std::unique_ptr<PeftMethod> clone() const = 0;

  /// PEFT's peft_type: "LORA".
  virtual std::string type() const = 0;
  /// Binds every key of adapter_config.json that is the method's own.
  virtual void bind(ConfigKeys& keys) = 0;
  /// ConfigError for settings that contradict each other or are not supported; names the key.
  virtual void check() const {}
  /// The same for settings that an adapter from a file may have and a new one may not.
  virtual void check_new() const {}
  /// Fills in what depends on the model.
  virtual void resolve(const models::ModelConfig&) {}

  /// Puts adapters without memory (fp32) into a model that is frozen already. Returns the names of adapted modules.
  virtual std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) = 0;
  /// Ways to fill each adapter parameter, by full name; the same on every rank and world size.
  virtual std::map<std::string, Fill> first_values(const nn::HookedModule& model, std::uint64_t seed) const = 0;
  virtual std::vector<FromWeight> from_weights(const nn::HookedModule&, std::uint64_t /*seed*/) const { return {}; }
  /// The same where the adapter's values are read from a file: what the file does not hold.
  virtual std::vector<FromWeight> from_weights_of_saved(const nn::HookedModule&) const { return {}; }
  /// A head that is tied to the word embedding has its adapter where both are targets; false: one of its own, on a
  /// matrix of its own.
  virtual bool adapts_tied_together() const { return false; }
  /// A module of the base model that the configuration asks to train whole, in place (modules_to_save).
  virtual bool has_modules_to_save() const { return true; }
  /// The file keeps the base weights of adapted embed_tokens and lm_head.
  virtual bool keeps_base_weights() const { return true; }
  /// A parameter of the base model that trains in place; the file keeps it under file_name().
  virtual bool trains(const std::string& /*parameter*/) const { return false; }

  /// What the adapter file's names of the base model's parameters begin with.
  virtual std::string prefix() const { return "base_model.model."; }
  /// What Accelerate's optimizer files call a parameter: its name in PEFT's module tree.
  virtual std::string name_in_peft(const std::string& parameter) const { return prefix() + parameter; }
  /// Name in the adapter file of a parameter of an adapter: its own without ".default".
  virtual std::string file_name(const std::string& parameter) const;
  /// All its names there: none where the file does not keep it, several where PEFT writes copies.
  virtual std::vector<std::string> file_names(const std::string& parameter) const { return {file_name(parameter)}; }

  /// Tensors of the file that are no parameters. They may be made of all adapters' values (by full names), which are
  /// given where file_names() leaves parameters out.
  virtual Values in_file(const Values&) const { return {}; }

  /// The adapter file with its tensors as this method's parameters have them.
  virtual std::shared_ptr<const io::TensorSource> readable(std::shared_ptr<const io::TensorSource> file) const {
    return file;
  }
  /// What the configuration beside the file says: these settings, unless the file holds another kind of adapter.
  virtual std::unique_ptr<PeftMethod> as_saved() const { return clone(); }

  /// Frozen numbers that PEFT's model has beside these parameters, for what it calls all of them.
  virtual std::int64_t other_parameters() const { return 0; }

  /// Throws ConfigError where adapters of this method are no change of the weights that this model has.
  virtual void check_can_merge(const nn::HookedModule& /*adapted*/) const {}
  /// The slot's weight or bias (`value`, whole; `leaf` says which) with its adapter folded in, computed in float32, in
  /// the value's dtype and layout. adapter: by names below the slot, and what sits below the model itself by full
  /// names.
  virtual at::Tensor merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                            const Values& adapter) const;
};

/// A method that sits in layers, chosen by target_modules.
class LayerMethod : public PeftMethod {
 public:
  void check() const override;
  void resolve(const models::ModelConfig& family) override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::map<std::string, Fill> first_values(const nn::HookedModule& model, std::uint64_t seed) const override;

 protected:
  /// target_modules where the settings name none; empty: the method has none for this family.
  virtual std::vector<std::string> default_targets(const models::ModelConfig& family) const = 0;
  /// The layers that will be adapted, before the first of them is.
  virtual void choose(const std::vector<Slot>&) {}
  virtual void attach_to(const Slot& slot) const = 0;
  /// As first_values(), of one adapter, by names below the slot.
  virtual std::map<std::string, Fill> first_values_of(const Slot& slot, std::uint64_t seed) const = 0;
};

/// PEFT's method of this type with its default settings. ConfigError lists the types that there are.
std::unique_ptr<PeftMethod> make_method(const std::string& type);
/// "LORA", "IA3", ...
std::vector<std::string> method_types();

}  // namespace tessera::peft
