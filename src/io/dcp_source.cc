#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/open_file.h"
#include "io/dcp_folder.h"
#include "io/stored_tensor.h"
#include "io/tensor_table.h"
#include "io/torch_file.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::int64_t kMaxMetadataBytes = std::int64_t{1} << 30;

std::string metadata_file(const std::string& folder) {
  return folder + "/.metadata";
}

std::string name_of_path(const std::vector<std::string>& path) {
  std::string out;
  for (std::size_t i = path.size() > 1 ? 1 : 0; i < path.size(); ++i) out += (out.empty() ? "" : "/") + path[i];
  return out;
}

/// A box whose values can be read: as the one tensor of a source.
struct OpenBox {
  std::vector<std::int64_t> offsets, sizes;
  std::shared_ptr<TensorSource> source;
};

struct BoxedTensor {
  TensorInfo info;
  std::vector<OpenBox> boxes;
};

/// Calls visit(first, in_box, count) for every run of `box` that is contiguous in the flattened tensor: elements
/// [first, first + count) of the tensor are elements [in_box, in_box + count) of the box.
template <class Visit>
void visit_runs(const std::vector<std::int64_t>& shape, const OpenBox& box, const Visit& visit) {
  std::size_t split = shape.size();  // dimensions from here on are whole
  std::int64_t run = 1;
  while (split > 0 && box.sizes[split - 1] == shape[split - 1]) run *= shape[--split];
  if (split > 0) run *= box.sizes[--split];
  std::int64_t runs = 1;
  for (std::size_t d = 0; d < split; ++d) runs *= box.sizes[d];
  std::vector<std::int64_t> index(split, 0);
  for (std::int64_t r = 0; r < runs && run > 0; ++r) {
    std::int64_t first = 0;
    for (std::size_t d = 0; d < shape.size(); ++d)
      first = first * shape[d] + box.offsets[d] + (d < split ? index[d] : 0);
    visit(first, r * run, run);
    for (auto d = split; d-- > 0;) {
      if (++index[d] < box.sizes[d]) break;
      index[d] = 0;
    }
  }
}

class DcpSource final : public TensorSource {
 public:
  explicit DcpSource(const std::string& folder) : folder_(folder) {
    for (const auto& tensor : read_dcp_metadata(folder).tensors) add(tensor);
    for (const auto& [name, tensor] : tensors_) infos_.push_back(tensor.info);
  }

  const std::vector<TensorInfo>& tensors() const override { return infos_; }
  const TensorInfo* find(const std::string& name) const override {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second.info;
  }
  std::optional<MappedTensor> map(const std::string&) const override { return std::nullopt; }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end())
      throw DataError(fmt::format("tensor '{}' is not among the {} tensors of {}", name, tensors_.size(), folder_),
                      folder_);
    const BoxedTensor& tensor = it->second;
    const std::int64_t count = out.numel(), end = begin + count;
    check_elements(tensor.info, begin, out);
    std::int64_t covered = 0;
    for (const auto& box : tensor.boxes) {
      visit_runs(tensor.info.shape, box, [&](std::int64_t first, std::int64_t in_box, std::int64_t run) {
        const auto from = std::max(first, begin), to = std::min(first + run, end);
        if (from >= to) return;
        const auto& inner = box.source->tensors().front().name;
        box.source->read(inner, in_box + from - first, out.narrow(0, from - begin, to - from));
        covered += to - from;
      });
    }
    if (covered < count)
      throw DataError(fmt::format("{}: {} of the {} elements [{}, {}) of '{}' are in no file", folder_, count - covered,
                                  count, begin, end, name),
                      folder_);
  }

 private:
  void add(const DcpTensor& tensor) {
    BoxedTensor out;
    out.info = {name_of_path(tensor.path), tensor.dtype, tensor.shape, folder_};
    checked_nbytes(out.info);
    for (const auto& chunk : tensor.chunks) out.boxes.push_back(open(tensor, chunk));
    const std::string name = out.info.name;
    if (!tensors_.emplace(name, std::move(out)).second)
      throw DataError(fmt::format("{}: tensor '{}' is there twice", folder_, name), folder_);
  }

  OpenBox open(const DcpTensor& tensor, const DcpChunk& chunk) {
    auto& file = files_[chunk.file];
    const std::string path = folder_ + "/" + chunk.file;
    if (!file) {
      if (!is_there(path))
        throw DataError(fmt::format("{}: '{}' should be in '{}', which does not exist; copy the files of all ranks "
                                    "into one folder",
                                    folder_, tensor.name, chunk.file),
                        path);
      file = std::make_shared<InputFile>(path);
    }
    auto stored = list_torch_tensor(file, {chunk.offset, chunk.length});
    stored.info.name = tensor.name;
    if (stored.info.shape != chunk.sizes || stored.info.dtype != tensor.dtype)
      throw DataError(fmt::format("{}: the part of '{}' at byte {} has another shape or dtype than .metadata says",
                                  path, tensor.name, chunk.offset),
                      path);
    return {chunk.offsets, chunk.sizes, make_stored_source({std::move(stored)})};
  }

  std::string folder_;
  std::map<std::string, BoxedTensor> tensors_;
  std::vector<TensorInfo> infos_;
  std::map<std::string, std::shared_ptr<InputFile>> files_;
};

}  // namespace

bool is_dcp_folder(const std::string& folder) {
  const std::string file = metadata_file(folder);
  return is_there(file) && std::filesystem::is_regular_file(file);
}

DcpMetadata read_dcp_metadata(const std::string& folder) {
  const std::string file = metadata_file(folder);
  if (!is_dcp_folder(folder))
    throw DataError(
        fmt::format("{}: no .metadata; expected a folder of torch.distributed.checkpoint. It is written last, by rank "
                    "0: the save was cut, or only other ranks' files were copied",
                    folder),
        folder);
  return parse_dcp_metadata(read_file(file, kMaxMetadataBytes), file);
}

std::shared_ptr<TensorSource> open_dcp(const std::string& folder) {
  return std::make_shared<DcpSource>(folder);
}

}  // namespace tessera::io
