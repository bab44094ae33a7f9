#include "peft/older_folders.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "peft/adapter_files.h"
#include "peft/methods/boft.h"
#include "peft/methods/lycoris.h"
#include "peft/methods/oft.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {
namespace {

using Notes = std::vector<std::string>;

void add(Notes* notes, const std::string& note) {
  if (notes) notes->push_back(note);
}

/// The minor version of "0.MINOR.PATCH"; -1 where the key is missing, as it is before 0.18.
int minor_version(const nlohmann::json& keys) {
  const auto key = keys.find("peft_version");
  if (key == keys.end() || !key->is_string()) return -1;
  const auto& text = key->get_ref<const std::string&>();
  int minor = 0;
  if (!text.starts_with("0.")) return 1000;
  const auto read = std::from_chars(text.data() + 2, text.data() + text.size(), minor);
  return read.ec == std::errc() ? minor : -1;
}

/// Whether a tensor of the folder's weights has a name with `part` and passes `test`.
template <class Test>
bool any_tensor(const std::string& file, const std::string& part, const Test& test) {
  const auto source = io::open_weights(file);
  return std::ranges::any_of(source->tensors(),
                             [&](const auto& t) { return t.name.find(part) != std::string::npos && test(t); });
}

void heed_oft(const nlohmann::json& keys, const std::string& folder, const Oft& method, Notes* notes) {
  const auto file = adapter_weights_in(folder);
  if (any_tensor(file, ".oft_r", [](const auto&) { return true; })) {
    throw DataError(file +
                        " is an OFT adapter of PEFT before 0.16, whose tensors are others; PEFT since then "
                        "cannot read it either. Merge it with PEFT 0.15 (0.13 where adapter_config.json has no "
                        "oft_block_size), or train it anew",
                    file);
  }
  if (method.use_cayley_neumann && minor_version(keys) < 18) {
    add(notes,
        folder +
            "/adapter_config.json: PEFT before 0.18 wrote this OFT adapter; its series had another last term, so "
            "results differ a little from those it had there, as in PEFT since then");
  }
}

/// PEFT trains and saves one factor where its CUDA kernels could not be built, whatever the configuration says.
void heed_boft(const std::string& folder, Boft& method, Notes* notes) {
  if (method.boft_n_butterfly_factor == 1) return;
  if (!any_tensor(adapter_weights_in(folder), ".boft_R",
                  [](const auto& t) { return !t.shape.empty() && t.shape[0] == 1; }))
    return;
  add(notes, folder + "/adapter_config.json: boft_n_butterfly_factor is " +
                 std::to_string(method.boft_n_butterfly_factor) +
                 ", but PEFT had no CUDA kernels and trained 1; so 1 is used");
  method.boft_n_butterfly_factor = 1;
}

void heed_lokr(const nlohmann::json& keys, const std::string& folder, const LoKr& method, Notes* notes) {
  if (keys.contains("rank_dropout_scale") || method.alpha == static_cast<double>(method.r)) return;
  add(notes,
      folder +
          "/adapter_config.json: PEFT before 0.14 wrote this LoKr adapter and did not scale it by alpha / r; now "
          "it is scaled, as in PEFT since then. For what it computed there, set alpha to the value of r");
}

}  // namespace

void heed_writer(const nlohmann::json& keys, const std::string& folder, PeftMethod& method, Notes* notes) {
  if (auto* oft = dynamic_cast<Oft*>(&method)) heed_oft(keys, folder, *oft, notes);
  if (auto* boft = dynamic_cast<Boft*>(&method)) heed_boft(folder, *boft, notes);
  if (const auto* lokr = dynamic_cast<LoKr*>(&method)) heed_lokr(keys, folder, *lokr, notes);
}

}  // namespace tessera::peft
