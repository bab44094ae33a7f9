#pragma once
// What of a reference run is rounding alone, and cannot be compared; PEFT's names of parameters.
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace tessera::verify {

/// PEFT's name of a trained parameter -> ours.
std::string plain_name(std::string name);
/// Elements whose gradient is nothing but rounding, for noise_of(): attention's key biases, for example, which
/// no softmax depends on. Known from the first gradients of the run's folder, or from the optimizer's second moments.
std::map<std::string, at::Tensor> noisy_elements(const std::filesystem::path& folder);
/// The same of sizes that are known: parameters' absolute gradients, or the roots of their second moments.
std::map<std::string, at::Tensor> noise_among(const std::map<std::string, at::Tensor>& sizes);
/// The elements of one tensor, by its name in the model or a file; undefined where nothing is known.
at::Tensor noise_of(const std::map<std::string, at::Tensor>& noise, const std::string& file_name);
/// The tensor with what is noise set to zero.
at::Tensor without_noise(const at::Tensor& t, const at::Tensor& noise);

}  // namespace tessera::verify
