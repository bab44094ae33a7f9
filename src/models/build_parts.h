#pragma once
// Layers made as a blueprint (families/blueprint.h) says, without memory for their parameters.
#include <memory>
#include <string>

#include "families/blueprint.h"
#include "nn/layers/container.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/linear.h"

namespace tessera::models {

std::shared_ptr<nn::Linear> make_linear(const families::Blueprint& part, at::ScalarType dtype,
                                        nn::WeightLayout layout = nn::WeightLayout::kOutIn);
std::shared_ptr<nn::Embedding> make_embedding(const families::Blueprint& part, at::ScalarType dtype,
                                              std::int64_t padding_idx = -1);

/// Registers `module` below `root` under a name that may be a path, "model.decoder"; containers of class `outer` stand
/// for its first parts.
template <class Module>
std::shared_ptr<Module> register_at(torch::nn::Module& root, const std::string& path, const std::string& outer,
                                    std::shared_ptr<Module> module) {
  torch::nn::Module* parent = &root;
  auto name = path;
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
    parent = parent->register_module(name.substr(0, dot), std::make_shared<nn::Container>(outer)).get();
    name.erase(0, dot + 1);
  }
  return parent->register_module(name, std::move(module));
}

/// Registers below `host` what `make` makes of the part with this name. Null: the blueprint has no such part.
template <class Make>
auto add_part(torch::nn::Module& host, const families::Blueprint& plan, const std::string& name, const Make& make)
    -> decltype(make(plan)) {
  const auto* part = plan.find(name);
  return part ? host.register_module(name, make(*part)) : nullptr;
}
inline std::shared_ptr<nn::Linear> add_linear(torch::nn::Module& host, const families::Blueprint& plan,
                                              const std::string& name, at::ScalarType dtype) {
  return add_part(host, plan, name, [&](const families::Blueprint& part) { return make_linear(part, dtype); });
}
inline std::shared_ptr<nn::Embedding> add_embedding(torch::nn::Module& host, const families::Blueprint& plan,
                                                    const std::string& name, at::ScalarType dtype,
                                                    std::int64_t padding_idx = -1) {
  return add_part(host, plan, name,
                  [&](const families::Blueprint& part) { return make_embedding(part, dtype, padding_idx); });
}

}  // namespace tessera::models
