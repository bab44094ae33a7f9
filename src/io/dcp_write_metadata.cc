#include "io/dcp_metadata.h"
#include "io/pickle_writer.h"

namespace tessera::io {
namespace {

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";

void put_properties(PickleWriter& out, at::ScalarType dtype) {
  out.create(kMetadataModule, "TensorProperties");
  out.begin_tuple();
  out.dtype(dtype);
  out.global("torch.serialization", "_get_layout");
  out.begin_tuple();
  out.text("torch.strided");
  out.end_tuple();
  out.reduce();
  out.boolean(false);  // requires_grad
  out.global(kMetadataModule, "_MEM_FORMAT_ENCODING");
  out.begin_tuple();
  out.integer(0);  // torch.contiguous_format
  out.end_tuple();
  out.reduce();
  out.boolean(false);  // pin_memory
  out.end_tuple();
  out.set_state();
}

void put_tensor(PickleWriter& out, const DcpTensor& tensor) {
  out.create(kMetadataModule, "TensorStorageMetadata");
  out.begin_dict();
  out.text("properties");
  put_properties(out, tensor.dtype);
  out.text("size");
  out.size(tensor.shape);
  out.text("chunks");
  out.begin_list();
  for (const auto& chunk : tensor.chunks) {
    out.create(kMetadataModule, "ChunkStorageMetadata");
    out.begin_dict();
    out.text("offsets");
    out.size(chunk.offsets);
    out.text("sizes");
    out.size(chunk.sizes);
    out.end_dict();
    out.set_state();
  }
  out.end_list();
  out.end_dict();
  out.set_state();
}

void put_object(PickleWriter& out) {
  out.create(kMetadataModule, "BytesStorageMetadata");
  out.begin_dict();
  out.end_dict();
  out.set_state();
}

/// Numbers in a path are positions in a list.
void put_path(PickleWriter& out, const std::vector<std::string>& path) {
  out.begin_tuple();
  for (const auto& part : path) {
    const bool position = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (position)
      out.integer(std::stoll(part));
    else
      out.text(part);
  }
  out.end_tuple();
}

void put_place(PickleWriter& out, const std::string& name, const std::vector<std::int64_t>* offsets, std::size_t index,
               const DcpChunk& chunk) {
  out.create(kMetadataModule, "MetadataIndex");
  out.begin_dict();
  out.text("fqn");
  out.text(name);
  out.text("offset");
  if (offsets)
    out.size(*offsets);
  else
    out.none();
  out.text("index");
  if (offsets)
    out.integer(static_cast<std::int64_t>(index));
  else
    out.none();
  out.end_dict();
  out.set_state();
  out.create("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  out.begin_dict();
  out.text("relative_path");
  out.text(chunk.file);
  out.text("offset");
  out.integer(static_cast<std::int64_t>(chunk.offset));
  out.text("length");
  out.integer(static_cast<std::int64_t>(chunk.length));
  out.text("transform_descriptors");
  out.none();
  out.end_dict();
  out.set_state();
}

}  // namespace

std::string write_dcp_metadata(const DcpMetadata& metadata) {
  PickleWriter out;
  out.create(kMetadataModule, "Metadata");
  out.begin_dict();
  out.text("state_dict_metadata");
  out.begin_dict();
  for (const auto& tensor : metadata.tensors) {
    out.text(tensor.name);
    put_tensor(out, tensor);
  }
  for (const auto& object : metadata.objects) {
    out.text(object.name);
    put_object(out);
  }
  out.end_dict();
  out.text("planner_data");
  out.begin_dict();
  for (const auto& tensor : metadata.tensors) {
    out.text(tensor.name);
    put_path(out, tensor.path);
  }
  for (const auto& object : metadata.objects) {
    out.text(object.name);
    put_path(out, object.path);
  }
  out.end_dict();
  out.text("storage_data");
  out.begin_dict();
  for (const auto& tensor : metadata.tensors)
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
      put_place(out, tensor.name, &tensor.chunks[i].offsets, i, tensor.chunks[i]);
  for (const auto& object : metadata.objects) put_place(out, object.name, nullptr, 0, object.where);
  out.end_dict();
  out.text("storage_meta");
  out.none();
  out.text("version");
  out.text("1.0.0");
  out.end_dict();
  out.set_state();
  return out.take();
}

}  // namespace tessera::io
