#pragma once
// adapter_model.safetensors (or .bin): which tensors it holds, under which names, and how they are read.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peft/method.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {

/// A parameter of the model that an adapter file keeps.
struct AdapterEntry {
  std::string parameter;  // in the module tree
  std::string file_name;  // as PEFT writes it
};

/// What PEFT's save_pretrained writes for this model, in registration order: the adapters; biases that the
/// method trains; modules_to_save; kept_embeddings; and where "embed_tokens" or "lm_head" are targets, their base
/// weights. A parameter may stand there twice, under different names.
std::vector<AdapterEntry> adapter_entries(const nn::HookedModule& model, const PeftMethod& method);

/// The folder's adapter_model.safetensors, or else .bin. DataError: neither is there.
std::string adapter_weights_in(const std::string& folder);

/// The settings in the folder, for this model. An adapter of its body alone (PeftModel over AutoModel) may choose
/// modules by expressions, which then know nothing of the names' first part.
std::unique_ptr<PeftMethod> adapter_method(const std::string& folder, const nn::HookedModule& model,
                                           std::vector<std::string>* notes = nullptr);

/// An adapter folder beside the model that apply_adapter() prepared from its configuration.
class AdapterFile {
 public:
  /// DataError: neither file is there; a tensor is missing, has another shape, or is not one of this model's. Base
  /// weights in the file (embeddings of a resized vocabulary) are used.
  AdapterFile(const std::string& folder, const nn::HookedModule& model, const PeftMethod& method);
  const std::shared_ptr<const io::TensorSource>& source() const { return source_; }
  /// Name of the parameter's tensor in source(); empty: not kept there. Names with and without ".base_layer" are
  /// understood.
  std::string source_name(const std::string& parameter) const;

 private:
  std::shared_ptr<const io::TensorSource> source_;
  std::map<std::string, std::string> names_;  // parameter -> name in source_
};

/// Rows of the token tables that the folder's file keeps, where they are more than the `vocab_size` of the model (not
/// adapted yet): its vocabulary has grown. Else `vocab_size`.
std::int64_t kept_vocabulary(const std::string& folder, const nn::HookedModule& model, std::int64_t vocab_size);

/// Rows of the classification head (score, classifier) that the folder's file keeps; 0: it keeps none.
std::int64_t kept_classes(const std::string& folder);

/// All values of the folder's file into an unsharded model.
void load_adapter(nn::HookedModule& model, const PeftMethod& method, const std::string& folder);

}  // namespace tessera::peft
