#pragma once
// Several adapters on one frozen model: saved ones that are switched between batches (PEFT's load_adapter and
// set_adapter), and ones that train side by side, each with the rows of its part of a batch.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "peft/method.h"
#include "peft/several/adapter_choice.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {

/// What PEFT calls the base model among the names of adapters.
inline const std::string kBaseModelName = "__base__";

struct AdapterFolder {
  std::string name, folder;
  std::shared_ptr<const PeftMethod> method = {};  // a new adapter; then there is no folder
  std::uint64_t seed = 0;                         // of its first values
};

/// Adapters that train keep what requires grad in them; of the others nothing does.
enum class Training { kNone, kAll };

class SeveralAdapters {
 public:
  /// Makes the model's modules again, without memory: methods attach their adapters there.
  using MakeSkeleton = std::function<std::shared_ptr<models::Model>()>;

  /// Freezes the model and puts every adapter into it (without memory yet), each layer's below "adapters.<name>". The
  /// base model alone is chosen. Methods must sit in layers: ConfigError, with the adapter's name, for virtual tokens,
  /// norms that train, tensors that layers share, modules_to_save, biases, and what begins with a part of the weights;
  /// of those that train also for AdaLoRA and for LoRA that begins with anything but drawn numbers.
  SeveralAdapters(models::Model& model, const models::ModelConfig& family, const std::vector<AdapterFolder>& folders,
                  const MakeSkeleton& make_skeleton, Training training = Training::kNone);

  /// One of them by itself, for saving it.
  struct Member {
    std::string name;
    std::shared_ptr<const models::Model> skeleton;  // with this adapter alone; no memory but the adapter's
    std::shared_ptr<const PeftMethod> method;       // as resolved
    std::map<std::string, std::string> names;       // in the model, of the adapter's parameters by their own names
    std::int64_t trainable = 0;
  };
  const std::vector<Member>& members() const { return members_; }

  const std::vector<std::string>& names() const { return names_; }
  /// kBaseModel for "__base__". ConfigError lists the names.
  int number_of(const std::string& name) const;
  /// What the layers follow until the next call: number_of() an adapter.
  void use(int number) const { *choice_ = {.number = number}; }
  /// Likewise, of batches in parts: the number of each part's.
  void use_for_parts(std::vector<int> numbers) const { *choice_ = {.of_parts = std::move(numbers)}; }
  std::int64_t adapted() const { return adapted_; }  // layers with an adapter

  /// `base` with the adapters' files in front.
  std::shared_ptr<io::TensorSource> joined_with(std::shared_ptr<const io::TensorSource> base) const;
  /// Name in that source of an adapter's parameter; empty: it is none, or not kept in a file.
  std::string source_name(const std::string& parameter) const;
  /// First values of what no file holds (what a seed in the configuration decides).
  std::function<void(const std::string&, const at::Tensor&)> init() const;

 private:
  struct Places;  // the layers that get adapters, while these are attached
  /// Takes the adapters that the folder's method attaches to the skeleton, which they keep alive.
  void take(const AdapterFolder& adapter, const models::ModelConfig& family, std::shared_ptr<models::Model> skeleton,
            Places& places, Training training);

  std::shared_ptr<AdapterChoice> choice_;
  std::vector<std::string> names_;
  std::vector<Member> members_;
  std::vector<std::shared_ptr<const io::TensorSource>> sources_;
  std::map<std::string, std::string> source_names_;  // by parameter
  std::map<std::string, std::function<void(const at::Tensor&)>> fills_;
  std::int64_t adapted_ = 0;
};

}  // namespace tessera::peft
