#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "io/safetensors_dtype.h"
#include "io/stored_tensor.h"
#include "io/tensor_source.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw CheckpointError(fmt::format("{}: {}: {}", path, what, std::strerror(errno)), path);
}

std::string make_header(const std::vector<TensorInfo>& infos,
                        const std::vector<std::pair<std::string, std::string>>& metadata) {
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) {
    OrderedJson strings = OrderedJson::object();
    for (const auto& [key, value] : metadata) strings[key] = value;
    header["__metadata__"] = strings;
  }
  std::string text = header.dump();
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
    text += OrderedJson(info.name).dump() + ':' + entry.dump();
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data, as the reference writer does
  return text;
}

}  // namespace

struct SafetensorsWriter::Impl {
  std::string path, temporary;
  int descriptor = -1;
  std::vector<TensorInfo> infos;
  std::map<std::string, std::pair<const TensorInfo*, std::int64_t>> missing;  // name -> info, offset in the file

  void write(const void* data, std::size_t bytes, std::int64_t offset) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const auto wrote = ::pwrite(descriptor, from, std::min(bytes, std::size_t{1} << 30), offset);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) fail(temporary, "cannot be written");
      from += wrote;
      offset += wrote;
      bytes -= static_cast<std::size_t>(wrote);
    }
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& file, std::vector<TensorInfo> infos,
                                     const std::vector<std::pair<std::string, std::string>>& metadata)
    : impl_(std::make_unique<Impl>()) {
  for (const auto& info : infos)
    if (safetensors_dtype_name(info.dtype).empty())
      throw CheckpointError(fmt::format("{}: tensor '{}': the safetensors format has no dtype for {}", file, info.name,
                                        c10::toString(info.dtype)),
                            file);
  std::sort(infos.begin(), infos.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const int ra = safetensors_dtype_rank(a.dtype), rb = safetensors_dtype_rank(b.dtype);
    return ra != rb ? ra > rb : a.name < b.name;
  });
  auto names = infos;
  std::sort(names.begin(), names.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < names.size(); ++i)
    TESSERA_CHECK(names[i].name != names[i - 1].name, "tensor '" + names[i].name + "' is given twice");
  for (auto& info : infos) info.file = file;
  impl_->path = file;
  impl_->temporary = fmt::format("{}.tmp-{}", file, ::getpid());
  impl_->infos = std::move(infos);
  const auto header = make_header(impl_->infos, metadata);
  impl_->descriptor = ::open(impl_->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (impl_->descriptor < 0) fail(impl_->temporary, "cannot be created");
  const std::uint64_t length = header.size();
  try {
    impl_->write(&length, sizeof length, 0);
    impl_->write(header.data(), header.size(), sizeof length);
  } catch (...) {
    ::close(impl_->descriptor);
    ::unlink(impl_->temporary.c_str());
    throw;
  }
  auto offset = static_cast<std::int64_t>(sizeof length + header.size());
  for (const auto& info : impl_->infos) {
    impl_->missing.emplace(info.name, std::pair(&info, offset));
    offset += static_cast<std::int64_t>(checked_nbytes(info));
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (impl_->descriptor < 0) return;
  ::close(impl_->descriptor);
  ::unlink(impl_->temporary.c_str());
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto it = impl_->missing.find(name);
  TESSERA_CHECK(it != impl_->missing.end(), "tensor '" + name + "' was not announced, or came twice");
  const auto& [info, offset] = it->second;
  TESSERA_CHECK(
      tensor.is_contiguous() && tensor.is_cpu() && tensor.scalar_type() == info->dtype && tensor.sizes() == info->shape,
      "'" + name + "' must be contiguous, on the CPU and of the announced dtype and shape");
  impl_->write(tensor.const_data_ptr(), static_cast<std::size_t>(tensor.nbytes()), offset);
  impl_->missing.erase(it);
}

void SafetensorsWriter::commit() {
  TESSERA_CHECK(impl_->descriptor >= 0, "commit() was called before");
  TESSERA_CHECK(impl_->missing.empty(),
                "tensor '" + impl_->missing.begin()->first + "' of " + impl_->path + " did not come");
  if (::fsync(impl_->descriptor) != 0) fail(impl_->temporary, "cannot be flushed to the disk");
  if (::rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0) fail(impl_->path, "cannot be renamed into place");
  ::close(impl_->descriptor);
  impl_->descriptor = -1;
  // The rename is durable only when the folder is on the disk too; file systems that refuse this keep their own
  // promise.
  const auto folder = std::filesystem::absolute(impl_->path).parent_path();
  const int d = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (d >= 0) {
    ::fsync(d);
    ::close(d);
  }
}

void write_safetensors(const std::string& file, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), file});
  }
  SafetensorsWriter writer(file, infos, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.detach().cpu().contiguous());
  writer.commit();
}

}  // namespace tessera::io
