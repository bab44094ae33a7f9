#pragma once
// As ATen/ATen.h beside it: torch/nn/module.h only names the archives, and TorchScript stands behind the real ones.
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize
