#include "io/pickle_writer.h"

#include <algorithm>
#include <cstring>

#include "io/pickle_value.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

template <class T>
std::string little_endian(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const auto s : shape) n *= s;
  return n;
}

}  // namespace

PickleWriter::PickleWriter() : out_("\x80\x02") {}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    out_ += 'K';
    out_ += static_cast<char>(value);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    out_ += 'J' + little_endian(static_cast<std::int32_t>(value));
  } else {
    out_ += std::string("\x8a\x08", 2) + little_endian(value);
  }
}

void PickleWriter::real(double value) {
  std::string bytes = little_endian(value);
  std::reverse(bytes.begin(), bytes.end());
  out_ += 'G' + bytes;
}

void PickleWriter::text(std::string_view value) {
  out_ += 'X' + little_endian(static_cast<std::uint32_t>(value.size()));
  out_ += value;
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  out_.append("c").append(module).append("\n").append(name).append("\n");
}

void PickleWriter::integers(const std::vector<std::int64_t>& values) {
  begin_tuple();
  for (const auto value : values) integer(value);
  end_tuple();
}

void PickleWriter::create(std::string_view module, std::string_view name) {
  global(module, name);
  out_ += ")\x81";
}

void PickleWriter::dtype(at::ScalarType dtype) {
  global("torch", torch_dtype_name(dtype));
}

void PickleWriter::size(const std::vector<std::int64_t>& sizes) {
  global("torch", "Size");
  begin_tuple();
  integers(sizes);
  end_tuple();
  reduce();
}

// See rebuild_tensor() in pickle_allowed.cc for the arguments.
void PickleWriter::tensor(std::string_view key, at::ScalarType dtype, const std::vector<std::int64_t>& shape) {
  const std::string_view storage = torch_storage_name(dtype);  // newer dtypes have none
  global("torch._utils", storage.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  begin_tuple();
  begin_tuple();
  text("storage");
  if (storage.empty())
    global("torch.storage", "UntypedStorage");
  else
    global("torch", storage);
  text(key);
  text("cpu");
  integer(product(shape) * (storage.empty() ? static_cast<std::int64_t>(c10::elementSize(dtype)) : 1));
  end_tuple();
  out_ += 'Q';
  integer(0);
  integers(shape);
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (auto d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<std::int64_t>(1, shape[d]);
  integers(strides);
  boolean(false);
  global("collections", "OrderedDict");
  begin_tuple();
  end_tuple();
  reduce();
  if (storage.empty()) this->dtype(dtype);
  end_tuple();
  reduce();
}

std::string PickleWriter::take() {
  return std::move(out_) + '.';
}

}  // namespace tessera::io
