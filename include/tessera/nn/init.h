#pragma once
// Memory and initial values for layers that are used without a weight file. Layers are created without memory for their
// parameters, so that a model can be built before anyone decides where its weights live.
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>

namespace tessera::nn {

/// A parameter without memory; reading it throws an error that says how to get values.
at::Tensor make_parameter(at::IntArrayRef sizes, at::ScalarType dtype);

/// Gives the parameter ordinary memory (uninitialised) if it has none.
void allocate(const at::Tensor& parameter);

/// Allocates what has no memory below `module` and draws PyTorch's default initial values: Linear U(+-1/sqrt(in)) for
/// weight and bias, Embedding N(0, 1), norms 1. Every value depends only on (seed, parameter name, position).
void reset_parameters(torch::nn::Module& module, std::uint64_t seed);

}  // namespace tessera::nn
