#include "io/gguf_writer.h"

#include <ATen/Parallel.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "io/gguf_blocks.h"
#include "io/gguf_encode.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::uint64_t kAlignment = 32;  // general.alignment, where the key is absent

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void append_text(std::string& out, const std::string& text) {
  append_raw(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

/// The format's number for a type.
template <class T>
constexpr std::uint32_t type_number() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return 0;
  if constexpr (std::is_same_v<T, std::uint32_t>) return 4;
  if constexpr (std::is_same_v<T, std::int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  return 8;  // a string
}

template <class T>
void append_value(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, std::string>)
    append_text(out, value);
  else
    append_raw(out, value);
}

struct AppendItem {
  std::string& out;
  template <class T>
  void operator()(const T& value) const {
    append_raw(out, type_number<T>());
    append_value(out, value);
  }
  template <class T>
  void operator()(const std::vector<T>& values) const {
    append_raw(out, std::uint32_t{9});
    append_raw(out, type_number<T>());
    append_raw(out, static_cast<std::uint64_t>(values.size()));
    for (const T& value : values) append_value(out, value);
  }
};

std::string header_of(const GgufMetadata& metadata, const std::vector<GgufTensorPlan>& tensors) {
  std::string out = "GGUF";
  append_raw(out, std::uint32_t{3});
  append_raw(out, static_cast<std::uint64_t>(tensors.size()));
  append_raw(out, static_cast<std::uint64_t>(metadata.size()));
  for (const auto& [key, item] : metadata) {
    append_text(out, key);
    std::visit(AppendItem{out}, item);
  }
  std::uint64_t offset = 0;
  for (const GgufTensorPlan& tensor : tensors) {
    append_text(out, tensor.name);
    append_raw(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      append_raw(out, static_cast<std::uint64_t>(*size));
    append_raw(out, tensor.type);
    append_raw(out, offset);
    offset += aligned(tensor.bytes());
  }
  out.resize(aligned(out.size()), '\0');
  return out;
}

/// `count` values from `values` on, as the type stores them.
std::string encoded(const GgufTensorPlan& tensor, const float* values, std::int64_t count) {
  std::string out;
  if (tensor.type == kGgufF32) return {reinterpret_cast<const char*>(values), static_cast<std::size_t>(count) * 4};
  if (tensor.type == kGgufF16) {
    out.resize(static_cast<std::size_t>(count) * 2);
    for (std::int64_t i = 0; i < count; ++i) {
      const c10::Half half(values[i]);
      std::memcpy(out.data() + 2 * i, &half.x, 2);
    }
    return out;
  }
  const GgufBlock* block = gguf_block(tensor.type);
  const GgufEncode encode = gguf_encoder(tensor.type);
  out.resize(static_cast<std::size_t>(count / block->elements * block->bytes));
  auto* bytes = reinterpret_cast<std::byte*>(out.data());
  constexpr std::int64_t kElementsOfThread = 1 << 14;
  at::parallel_for(0, count / block->elements, kElementsOfThread / block->elements, [&](auto first, auto last) {
    for (auto i = first; i < last; ++i) encode(values + i * block->elements, bytes + i * block->bytes);
  });
  return out;
}

}  // namespace

std::int64_t GgufTensorPlan::numel() const {
  std::int64_t n = 1;
  for (const auto size : shape) n *= size;
  return n;
}

std::uint64_t GgufTensorPlan::bytes() const {
  const auto n = static_cast<std::uint64_t>(numel());
  if (type == kGgufF32) return 4 * n;
  if (type == kGgufF16) return 2 * n;
  const GgufBlock* block = gguf_block(type);
  TESSERA_CHECK(block && gguf_encoder(type) && shape.back() % block->elements == 0,
                "tensor " + name + " has no such type");
  return n / static_cast<std::uint64_t>(block->elements) * static_cast<std::uint64_t>(block->bytes);
}

GgufWriter::GgufWriter(const std::string& path, const GgufMetadata& metadata, std::vector<GgufTensorPlan> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  const std::string header = header_of(metadata, tensors_);
  file_.write(0, header.data(), header.size());
  at_ = header.size();
}

void GgufWriter::write(const float* values) {
  const GgufTensorPlan& tensor = tensors_.at(next_++);
  constexpr std::int64_t kAtOnce = 1 << 20;  // a multiple of every block
  std::uint64_t at = at_;
  for (std::int64_t begin = 0; begin < tensor.numel(); begin += kAtOnce) {
    const std::string bytes = encoded(tensor, values + begin, std::min(kAtOnce, tensor.numel() - begin));
    file_.write(at, bytes.data(), bytes.size());
    at += bytes.size();
  }
  at_ += aligned(tensor.bytes());
  const std::string zeros(static_cast<std::size_t>(at_ - at), '\0');
  if (!zeros.empty()) file_.write(at, zeros.data(), zeros.size());
}

void GgufWriter::commit() {
  TESSERA_CHECK(next_ == tensors_.size(), "not all tensors of the plan were written");
  (void)file_.commit();
}

}  // namespace tessera::io
