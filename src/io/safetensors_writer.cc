#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "io/output_file.h"
#include "io/safetensors_dtype.h"
#include "io/safetensors_layout.h"
#include "io/stored_tensor.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string make_header(const std::vector<TensorInfo>& infos,
                        const std::vector<std::pair<std::string, std::string>>& metadata) {
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) {
    OrderedJson strings = OrderedJson::object();
    for (const auto& [key, value] : metadata) strings[key] = value;
    header["__metadata__"] = strings;
  }
  std::string text = json_text(header);
  text.pop_back();  // entries are appended as text: ordered_json searches linearly on every insertion
  std::uint64_t at = 0;
  for (const auto& info : infos) {
    const auto bytes = checked_nbytes(info);
    OrderedJson entry;
    entry["dtype"] = safetensors_dtype_name(info.dtype);
    entry["shape"] = info.shape;
    entry["data_offsets"] = {at, at + bytes};
    at += bytes;
    if (text.size() > 1) text += ',';
    text += json_text(OrderedJson(info.name)) + ':' + json_text(entry);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data, as the reference writer does
  return text;
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(const std::string& file, std::vector<TensorInfo> infos,
                                     const std::vector<std::pair<std::string, std::string>>& metadata) {
  for (const auto& info : infos)
    if (safetensors_dtype_name(info.dtype).empty())
      throw CheckpointError(fmt::format("{}: tensor '{}': the safetensors format has no dtype for {}", file, info.name,
                                        c10::toString(info.dtype)),
                            file);
  std::sort(infos.begin(), infos.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const int ra = safetensors_dtype_rank(a.dtype), rb = safetensors_dtype_rank(b.dtype);
    return ra != rb ? ra > rb : a.name < b.name;
  });
  for (auto& info : infos) info.file = file;
  const auto text = make_header(infos, metadata);
  const std::uint64_t length = text.size();
  header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  header += text;
  bytes = header.size();
  for (const auto& info : infos) {
    const bool is_new = places.emplace(info.name, Place{info, bytes}).second;
    TESSERA_CHECK(is_new, "tensor '" + info.name + "' is given twice");
    bytes += checked_nbytes(info);
  }
}

struct SafetensorsWriter::Impl {
  Impl(const std::string& path, SafetensorsLayout whole)
      : layout(std::move(whole)), missing(layout.places), file(path) {}
  SafetensorsLayout layout;
  std::map<std::string, SafetensorsLayout::Place> missing;
  OutputFile file;
};

SafetensorsWriter::SafetensorsWriter(const std::string& file, std::vector<TensorInfo> infos,
                                     const std::vector<std::pair<std::string, std::string>>& metadata)
    : impl_(std::make_unique<Impl>(file, SafetensorsLayout(file, std::move(infos), metadata))) {
  impl_->file.resize(impl_->layout.bytes);
  impl_->file.write(0, impl_->layout.header.data(), impl_->layout.header.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto it = impl_->missing.find(name);
  TESSERA_CHECK(it != impl_->missing.end(), "tensor '" + name + "' was not announced, or came twice");
  const auto& [info, offset] = it->second;
  TESSERA_CHECK(
      tensor.is_contiguous() && tensor.is_cpu() && tensor.scalar_type() == info.dtype && tensor.sizes() == info.shape,
      "'" + name + "' must be contiguous, on the CPU and of the announced dtype and shape");
  impl_->file.write(offset, tensor.const_data_ptr(), tensor.nbytes());
  impl_->missing.erase(it);
}

WrittenFile SafetensorsWriter::commit() {
  TESSERA_CHECK(impl_->missing.empty(),
                "tensor '" + impl_->missing.begin()->first + "' of " + impl_->file.path() + " did not come");
  return impl_->file.commit();
}

WrittenFile write_safetensors(const std::string& file, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata,
                              const std::function<void(const at::Tensor&)>& has_read) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), file});
  }
  const SafetensorsLayout layout(file, infos, metadata);
  auto in_order = tensors;  // of the file: neighbours are written together
  std::sort(in_order.begin(), in_order.end(), [&](const auto& a, const auto& b) {
    return layout.places.at(a.first).offset < layout.places.at(b.first).offset;
  });
  SafetensorsWriter writer(file, std::move(infos), metadata);
  for (const auto& [name, tensor] : in_order) {
    writer.write(name, tensor.detach().cpu().contiguous());
    if (has_read) has_read(tensor);
  }
  return writer.commit();
}

}  // namespace tessera::io
