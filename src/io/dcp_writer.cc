#include <fmt/ranges.h>

#include <algorithm>

#include <map>

#include "io/dcp_folder.h"
#include "io/pickle_writer.h"
#include "io/torch_file_writer.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

std::int64_t inner_numel(const std::vector<std::int64_t>& shape, std::size_t dim) {
  std::int64_t n = 1;
  for (std::size_t d = dim + 1; d < shape.size(); ++d) n *= shape[d];
  return n;
}

/// Rows [first, last) of dimension `dim` inside the row that `box` names in the dimensions before.
DcpChunk rows(const std::vector<std::int64_t>& shape, DcpChunk box, std::size_t dim, std::int64_t first,
              std::int64_t last) {
  box.offsets[dim] = first;
  box.sizes[dim] = last - first;
  for (std::size_t d = dim + 1; d < shape.size(); ++d) {
    box.offsets[d] = 0;
    box.sizes[d] = shape[d];
  }
  return box;
}

void add_boxes(const std::vector<std::int64_t>& shape, const DcpChunk& box, std::size_t dim, std::int64_t begin,
               std::int64_t end, std::vector<DcpChunk>& out) {
  if (begin >= end) return;
  const std::int64_t inner = inner_numel(shape, dim);
  const auto part_of_row = [&](std::int64_t row, std::int64_t from, std::int64_t to) {
    add_boxes(shape, rows(shape, box, dim, row, row + 1), dim + 1, from - row * inner, to - row * inner, out);
  };
  std::int64_t first = begin / inner;
  const std::int64_t last = end / inner;
  if (begin % inner != 0) {
    part_of_row(first, begin, std::min(end, (first + 1) * inner));
    ++first;
  }
  if (first < last) out.push_back(rows(shape, box, dim, first, last));
  if (last >= first && end % inner != 0) part_of_row(last, last * inner, end);
}

std::string joined_path(const std::vector<std::string>& path) {
  return fmt::format("{}", fmt::join(path, "."));
}

std::int64_t numel_of(const DcpChunk& box) {
  std::int64_t n = 1;
  for (const auto size : box.sizes) n *= size;
  return n;
}

std::string tensor_pickle(at::ScalarType dtype, const std::vector<std::int64_t>& shape) {
  PickleWriter out;
  out.tensor("0", dtype, shape);
  return out.take();
}

}  // namespace

std::vector<DcpChunk> boxes_of_range(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end) {
  std::vector<DcpChunk> out;
  DcpChunk whole;
  whole.offsets.assign(shape.size(), 0);
  whole.sizes = shape;
  if (shape.empty())
    out.push_back(whole);
  else
    add_boxes(shape, whole, 0, begin, end, out);
  return out;
}

void DcpLayout::place(DcpChunk& chunk, std::uint64_t bytes) {
  chunk.file = file_;
  chunk.offset = end_;
  chunk.length = bytes;
  end_ += bytes;
}

std::size_t DcpLayout::add(const std::vector<std::string>& path, at::ScalarType dtype,
                           const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t numel) {
  const std::string name = joined_path(path);
  const auto [it, is_new] = known_.emplace(name, metadata_.tensors.size());
  if (is_new) metadata_.tensors.push_back({name, path, dtype, shape, {}});
  auto boxes = boxes_of_range(shape, begin, begin + numel);
  for (auto& box : boxes) {
    const auto bytes = static_cast<std::uint64_t>(numel_of(box)) * c10::elementSize(dtype);
    place(box, torch_archive_bytes(tensor_pickle(dtype, box.sizes).size(), bytes));
    metadata_.tensors[it->second].chunks.push_back(box);
  }
  return boxes.size();
}

void DcpLayout::add_object(const std::vector<std::string>& path, const std::string& pickle) {
  DcpObject object{joined_path(path), path, {}};
  place(object.where, torch_archive_bytes(pickle.size(), std::nullopt));
  metadata_.objects.push_back(std::move(object));
}

const DcpTensor& DcpLayout::tensor(const std::vector<std::string>& path) const {
  return metadata_.tensors[known_.at(joined_path(path))];
}

DcpFileWriter::DcpFileWriter(const std::string& folder, const std::string& file)
    : layout_(file), file_(folder + "/" + file) {}

void DcpFileWriter::write(const std::vector<std::string>& path, const std::vector<std::int64_t>& shape,
                          std::int64_t begin, const at::Tensor& part) {
  const auto count = layout_.add(path, part.scalar_type(), shape, begin, part.numel());
  const auto& chunks = layout_.tensor(path).chunks;
  std::int64_t done = 0;
  for (std::size_t i = chunks.size() - count; i < chunks.size(); ++i) {
    const auto values = part.narrow(0, done, numel_of(chunks[i]));
    const std::string archive = torch_archive(tensor_pickle(part.scalar_type(), chunks[i].sizes), values);
    TESSERA_CHECK(archive.size() == chunks[i].length, "an archive fills its place");
    file_.write(chunks[i].offset, archive.data(), archive.size());
    done += values.numel();
  }
}

void DcpFileWriter::write_object(const std::vector<std::string>& path, const std::string& pickle) {
  layout_.add_object(path, pickle);
  const std::string archive = torch_archive(pickle, at::Tensor());
  file_.write(layout_.metadata().objects.back().where.offset, archive.data(), archive.size());
}

DcpMetadata joined_metadata(const std::vector<DcpMetadata>& parts) {
  DcpMetadata out;
  std::map<std::string, std::size_t> known;
  for (const auto& part : parts) {
    for (const auto& tensor : part.tensors) {
      const auto [it, is_new] = known.emplace(tensor.name, out.tensors.size());
      if (is_new) {
        out.tensors.push_back(tensor);
        continue;
      }
      auto& chunks = out.tensors[it->second].chunks;
      chunks.insert(chunks.end(), tensor.chunks.begin(), tensor.chunks.end());
    }
    out.objects.insert(out.objects.end(), part.objects.begin(), part.objects.end());
  }
  return out;
}

}  // namespace tessera::io
