#pragma once
// Folders of torch.distributed.checkpoint (Accelerate's pytorch_model_fsdp_0 and optimizer_0): .metadata and
// __<rank>_<n>.distcp files, each a row of small archives of torch.save.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/dcp_metadata.h"
#include "io/output_file.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// True when the folder has a .metadata file.
bool is_dcp_folder(const std::string& folder);

DcpMetadata read_dcp_metadata(const std::string& folder);

/// Its tensors under the last parts of their paths: of ("model", "lm_head.weight") "lm_head.weight", of ("optimizer",
/// "state", "lm_head.weight", "exp_avg") "state/lm_head.weight/exp_avg" (the first part is dropped, the others are
/// joined by
/// '/'). A range is read from the boxes that hold it. DataError names what is damaged, missing or not covered.
std::shared_ptr<TensorSource> open_dcp(const std::string& folder);

/// Where everything of one file will lie, from names, shapes and sizes alone.
class DcpLayout {
 public:
  explicit DcpLayout(std::string file) : file_(std::move(file)) {}
  /// Elements [begin, begin + numel) of the flattened tensor, cut into boxes: the last so many of the tensor's chunks.
  std::size_t add(const std::vector<std::string>& path, at::ScalarType dtype, const std::vector<std::int64_t>& shape,
                  std::int64_t begin, std::int64_t numel);
  void add_object(const std::vector<std::string>& path, const std::string& pickle);
  const DcpMetadata& metadata() const { return metadata_; }
  const DcpTensor& tensor(const std::vector<std::string>& path) const;

 private:
  void place(DcpChunk& chunk, std::uint64_t bytes);
  std::string file_;
  std::uint64_t end_ = 0;
  DcpMetadata metadata_;
  std::map<std::string, std::size_t> known_;  // name -> index among the tensors
};

/// One file of such a folder, written front to back; its part of the metadata grows with it.
class DcpFileWriter {
 public:
  /// file: "__0_0.distcp" in `folder`.
  DcpFileWriter(const std::string& folder, const std::string& file);

  /// part: 1-D, what DcpLayout::add() is told of.
  void write(const std::vector<std::string>& path, const std::vector<std::int64_t>& shape, std::int64_t begin,
             const at::Tensor& part);
  /// A pickled value that is no tensor.
  void write_object(const std::vector<std::string>& path, const std::string& pickle);
  WrittenFile commit() { return file_.commit(); }
  const DcpMetadata& metadata() const { return layout_.metadata(); }

 private:
  DcpLayout layout_;
  OutputFile file_;
};

/// The parts of several files together: the boxes of equal names are joined.
DcpMetadata joined_metadata(const std::vector<DcpMetadata>& parts);

/// The elements [begin, end) of a row-major tensor of this shape as boxes, in their order; each is contiguous.
std::vector<DcpChunk> boxes_of_range(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end);

}  // namespace tessera::io
