#pragma once
// Files that torch.load(weights_only=True) reads, streamed.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// An archive of torch.save: a pickle that refers to storages "0", "1", ... (io/pickle_writer.h) and their bytes, which
/// may come in any order. Without commit() nothing is left behind. CheckpointError where the file cannot be written.
class TorchFileWriter {
 public:
  TorchFileWriter(const std::string& file, std::string pickle, const std::vector<std::uint64_t>& storage_bytes);
  ~TorchFileWriter();
  TorchFileWriter(const TorchFileWriter&) = delete;
  TorchFileWriter& operator=(const TorchFileWriter&) = delete;

  /// The whole storage, contiguous, on the CPU.
  void write(std::size_t storage, const at::Tensor& tensor);
  WrittenFile commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The pickle of a state dict {name: tensor}, an OrderedDict as torch.save writes it; tensor i is storage storages[i],
/// or where none are given storage i.
std::string state_dict_pickle(const std::vector<TensorInfo>& infos, const std::vector<std::size_t>& storages = {});

/// torch.save(dict(tensors), file).
WrittenFile write_torch_file(const std::string& file, const std::vector<std::pair<std::string, at::Tensor>>& tensors);

/// A whole archive in memory: torch.save of one value whose pickle refers to at most storage "0".
std::string torch_archive(std::string pickle, const at::Tensor& storage);
/// Its size; no storage_bytes: without a storage.
std::uint64_t torch_archive_bytes(std::size_t pickle_bytes, std::optional<std::uint64_t> storage_bytes);

}  // namespace tessera::io
