#pragma once
#include <torch/nn/module.h>

#include <string>

namespace tessera::nn {

/// Only a place in the module tree ("ModuleList", "ModuleDict"): never called, so never a unit.
class Container : public torch::nn::Module {
 public:
  explicit Container(std::string name) : torch::nn::Module(std::move(name)) {}
};

}  // namespace tessera::nn
