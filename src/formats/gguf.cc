#include "formats/gguf.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <type_traits>

#include "base/open_file.h"
#include "base/utf8.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

enum Type : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

constexpr std::uint32_t kMaxDims = 4;
constexpr std::uint64_t kMaxName = 65535;

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }

  std::string string(std::uint64_t limit = std::numeric_limits<std::uint64_t>::max()) {
    const auto length = number<std::uint64_t>();
    if (length > limit || length > left())
      fail(fmt::format("a string of {} bytes, but {} are left in the file", length, left()));
    return {take(length), length};
  }

  std::uint64_t left() const { return bytes_.size() - at_; }
  std::uint64_t at() const { return at_; }
  void set_where(std::string where) { where_ = std::move(where); }
  [[noreturn]] void fail(const std::string& message) const {
    throw DataError(fmt::format("{}: {}: byte {}: {}", path_, where_, at_, message), path_);
  }

 private:
  const char* take(std::uint64_t bytes) {
    if (bytes > left()) fail(fmt::format("the file ends here ({} bytes more were expected)", bytes - left()));
    const auto* p = bytes_.data() + at_;
    at_ += bytes;
    return p;
  }

  std::string_view bytes_;
  const std::string& path_;
  std::uint64_t at_ = 0;
  std::string where_ = "header";
};

std::int64_t read_integer(Reader& in, std::uint32_t type) {
  switch (type) {
    case kU8:
      return in.number<std::uint8_t>();
    case kI8:
      return in.number<std::int8_t>();
    case kU16:
      return in.number<std::uint16_t>();
    case kI16:
      return in.number<std::int16_t>();
    case kU32:
      return in.number<std::uint32_t>();
    case kI32:
      return in.number<std::int32_t>();
    case kI64:
      return in.number<std::int64_t>();
    case kU64: {
      const auto value = in.number<std::uint64_t>();
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        in.fail(fmt::format("the number {} exceeds 2^63 - 1", value));
      return static_cast<std::int64_t>(value);
    }
    default: {
      const auto value = in.number<std::uint8_t>();  // kBool
      if (value > 1) in.fail(fmt::format("a truth value of {}; expected 0 or 1", value));
      return value;
    }
  }
}

double read_float(Reader& in, std::uint32_t type) {
  return type == kF32 ? static_cast<double>(in.number<float>()) : in.number<double>();
}

bool is_float(std::uint32_t type) {
  return type == kF32 || type == kF64;
}

std::uint64_t least_bytes(Reader& in, std::uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
    case kString:
      return 8;
    default:
      in.fail(type == kArray ? "arrays of arrays are not read"
                             : fmt::format("value type {}; known are 0 to {}", type, static_cast<int>(kF64)));
  }
}

GgufValue read_array(Reader& in) {
  const auto type = in.number<std::uint32_t>();
  const auto bytes = least_bytes(in, type);
  const auto count = in.number<std::uint64_t>();
  if (count > in.left() / bytes)
    in.fail(fmt::format("an array of {} elements, but {} bytes are left in the file", count, in.left()));
  const auto fill = [&](auto list, auto read) {
    list.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) list.push_back(read());
    return GgufValue(std::move(list));
  };
  if (type == kString) return fill(std::vector<std::string>(), [&] { return in.string(); });
  if (is_float(type)) return fill(std::vector<double>(), [&] { return read_float(in, type); });
  return fill(std::vector<std::int64_t>(), [&] { return read_integer(in, type); });
}

GgufValue read_value(Reader& in) {
  const auto type = in.number<std::uint32_t>();
  if (type == kArray) return read_array(in);
  least_bytes(in, type);  // rejects unknown types
  if (type == kString) {
    auto text = in.string();
    if (const auto at = find_malformed_utf8(text)) in.fail(fmt::format("its text is not UTF-8 from byte {} on", *at));
    return text;
  }
  if (is_float(type)) return read_float(in, type);
  const auto value = read_integer(in, type);
  return type == kBool ? GgufValue(value == 1) : GgufValue(value);
}

GgufTensor read_tensor_info(Reader& in, std::uint64_t index) {
  GgufTensor t;
  in.set_where(fmt::format("tensor {}", index));
  t.name = in.string(kMaxName);
  in.set_where(fmt::format("tensor '{}'", t.name));
  const auto dims = in.number<std::uint32_t>();
  if (dims > kMaxDims) in.fail(fmt::format("{} dimensions; at most {} are allowed", dims, kMaxDims));
  t.shape.resize(dims);
  for (auto d = dims; d-- > 0;) t.shape[d] = read_integer(in, kU64);
  t.type = in.number<std::uint32_t>();
  t.offset = in.number<std::uint64_t>();
  return t;
}

std::uint64_t alignment_of(const GgufHeader& header, const Reader& in) {
  const auto found = header.metadata.find("general.alignment");
  if (found == header.metadata.end()) return 32;
  const auto* value = std::get_if<std::int64_t>(&found->second);
  if (!value || *value < 1 || *value > (1 << 30) || (*value & (*value - 1)) != 0)
    in.fail("general.alignment must be a power of two up to 2^30");
  return static_cast<std::uint64_t>(*value);
}

template <class T>
const T* value_of(const GgufHeader& header, const std::string& key, const char* expected) {
  const auto found = header.metadata.find(key);
  if (found == header.metadata.end()) return nullptr;
  const auto* value = std::get_if<T>(&found->second);
  if (!value) throw DataError(fmt::format("{}: key '{}' must be {}", header.path, key, expected), header.path);
  return value;
}

template <class T>
std::optional<T> copy_of(const T* value) {
  return value ? std::optional<T>(*value) : std::nullopt;
}

/// A file's bytes, mapped read-only.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const OpenFile file(path);
    if (file.size_bytes() == 0) return;
    size_ = static_cast<std::size_t>(file.size_bytes());
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (data_ == MAP_FAILED) throw DataError(fmt::format("cannot read '{}': {}", path, std::strerror(errno)), path);
  }
  ~MappedFile() {
    if (data_) ::munmap(data_, size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

GgufHeader parse_gguf_header(std::string_view bytes, const std::string& path) {
  Reader in(bytes, path);
  if (in.left() < 4 || in.number<std::uint32_t>() != 0x46554747u)
    throw DataError(path + ": not a GGUF file: it does not begin with the letters GGUF", path);
  const auto version = in.number<std::uint32_t>();
  if (version != 2 && version != 3)
    in.fail(version == 0x02000000u || version == 0x03000000u
                ? "a big-endian GGUF file; only little-endian ones are read"
                : fmt::format("GGUF version {}; 2 and 3 are read", version));
  const auto tensors = in.number<std::uint64_t>(), pairs = in.number<std::uint64_t>();
  GgufHeader header;
  header.path = path;
  constexpr std::uint64_t kLeastPair = 8 + 4 + 1, kLeastTensor = 8 + 4 + 4 + 8;
  if (pairs > in.left() / kLeastPair || tensors > in.left() / kLeastTensor)
    in.fail(fmt::format("{} tensors and {} keys, but {} bytes are left in the file", tensors, pairs, in.left()));
  for (std::uint64_t i = 0; i < pairs; ++i) {
    in.set_where(fmt::format("key {}", i));
    auto key = in.string(kMaxName);
    in.set_where(fmt::format("key '{}'", key));
    auto value = read_value(in);
    if (!header.metadata.emplace(std::move(key), std::move(value)).second) in.fail("the key is given twice");
  }
  header.tensors.reserve(tensors);
  for (std::uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(read_tensor_info(in, i));
  in.set_where("header");
  const auto alignment = alignment_of(header, in);
  const auto data = (in.at() + alignment - 1) / alignment * alignment;
  for (auto& t : header.tensors) {
    if (t.offset % alignment != 0 || t.offset > bytes.size() || data > bytes.size() - t.offset) {
      in.set_where(fmt::format("tensor '{}'", t.name));
      in.fail(
          fmt::format("its data would start at byte {} + {}; expected a multiple of {} inside the {} bytes of the "
                      "file",
                      data, t.offset, alignment, bytes.size()));
    }
    t.offset += data;
  }
  return header;
}

GgufHeader read_gguf_header(const std::string& path) {
  const MappedFile file(path);
  return parse_gguf_header(file.bytes(), path);
}

std::optional<std::string> find_gguf(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::path(path).extension() == ".gguf") return path;
  std::error_code none;
  if (!fs::is_directory(path, none)) return std::nullopt;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".gguf") found.push_back(entry.path().string());
  if (found.size() > 1)
    throw DataError(fmt::format("{}: holds {} GGUF files; give the path of one", path, found.size()), path);
  return found.empty() ? std::nullopt : std::optional<std::string>(found.front());
}

std::optional<std::int64_t> GgufHeader::integer(const std::string& key) const {
  return copy_of(value_of<std::int64_t>(*this, key, "an integer"));
}
std::optional<double> GgufHeader::number(const std::string& key) const {
  const auto found = metadata.find(key);
  if (found != metadata.end())
    if (const auto* n = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*n);
  return copy_of(value_of<double>(*this, key, "a number"));
}
std::optional<bool> GgufHeader::boolean(const std::string& key) const {
  return copy_of(value_of<bool>(*this, key, "a truth value"));
}
std::optional<std::string> GgufHeader::text(const std::string& key) const {
  return copy_of(value_of<std::string>(*this, key, "a string"));
}
const std::vector<std::string>* GgufHeader::texts(const std::string& key) const {
  return value_of<std::vector<std::string>>(*this, key, "a list of strings");
}
const std::vector<std::int64_t>* GgufHeader::integers(const std::string& key) const {
  return value_of<std::vector<std::int64_t>>(*this, key, "a list of integers");
}
const std::vector<double>* GgufHeader::numbers(const std::string& key) const {
  return value_of<std::vector<double>>(*this, key, "a list of numbers");
}

}  // namespace tessera
