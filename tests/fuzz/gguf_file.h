#pragma once
// Changes of a GGUF file: of keys, values, texts in them and tensors, with lengths and counts that fit.
#include <vector>

#include "fuzz/mutate.h"

namespace tessera::fuzz {

/// A file taken apart. Offsets of tensors stay as they are; what follows the list of tensors is data.
struct GgufFile {
  static constexpr std::uint32_t kString = 8, kArray = 9;
  struct Pair {
    std::string key;
    std::uint32_t type = 0, item_type = 0;  // item_type: of an array
    std::vector<std::string> items;         // texts, or the bytes of numbers
  };
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
  };
  std::uint32_t version = 3;
  std::vector<Pair> pairs;
  std::vector<Tensor> tensors;
  std::string data;
};

inline std::size_t gguf_bytes(std::uint32_t type) {
  constexpr std::size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

class GgufParts {
 public:
  explicit GgufParts(std::string_view bytes) : bytes_(bytes) {}

  std::optional<GgufFile> file() {
    GgufFile out;
    if (bytes_.size() < 24 || bytes_.substr(0, 4) != "GGUF") return std::nullopt;
    at_ = 4;
    out.version = number<std::uint32_t>();
    const auto tensors = number<std::uint64_t>(), pairs = number<std::uint64_t>();
    for (std::uint64_t i = 0; i < pairs && is_good_; ++i) out.pairs.push_back(pair());
    for (std::uint64_t i = 0; i < tensors && is_good_; ++i) out.tensors.push_back(tensor());
    if (!is_good_) return std::nullopt;
    out.data = bytes_.substr(std::min((at_ + 31) / 32 * 32, bytes_.size()));
    return out;
  }

 private:
  std::string_view take(std::uint64_t count) {
    is_good_ = is_good_ && count <= bytes_.size() - at_;
    if (!is_good_) return {};
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  template <class T>
  T number() {
    const auto bytes = take(sizeof(T));
    return is_good_ ? number_at<T>(bytes, 0) : T{};
  }
  std::string value(std::uint32_t type) {
    is_good_ = is_good_ && (type == GgufFile::kString || gguf_bytes(type) > 0);
    return std::string(take(type == GgufFile::kString ? number<std::uint64_t>() : gguf_bytes(type)));
  }
  GgufFile::Pair pair() {
    GgufFile::Pair out{value(GgufFile::kString), number<std::uint32_t>(), 0, {}};
    std::uint64_t count = 1;
    if (out.type == GgufFile::kArray) {
      out.item_type = number<std::uint32_t>();
      count = number<std::uint64_t>();
    }
    for (std::uint64_t i = 0; i < count && is_good_; ++i)
      out.items.push_back(value(out.type == GgufFile::kArray ? out.item_type : out.type));
    return out;
  }
  GgufFile::Tensor tensor() {
    GgufFile::Tensor out{value(GgufFile::kString), {}, 0, 0};
    const auto dims = number<std::uint32_t>();
    for (std::uint32_t i = 0; i < dims && is_good_; ++i) out.dims.push_back(number<std::uint64_t>());
    out.type = number<std::uint32_t>();
    out.offset = number<std::uint64_t>();
    return out;
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  bool is_good_ = true;
};

inline std::string as_bytes(const GgufFile& file) {
  std::string out = "GGUF";
  const auto text = [&](const std::string& s) {
    put(out, std::uint64_t{s.size()});
    out += s;
  };
  put(out, file.version);
  put(out, std::uint64_t{file.tensors.size()});
  put(out, std::uint64_t{file.pairs.size()});
  for (const auto& pair : file.pairs) {
    text(pair.key);
    put(out, pair.type);
    const bool is_array = pair.type == GgufFile::kArray;
    if (is_array) {
      put(out, pair.item_type);
      put(out, std::uint64_t{pair.items.size()});
    }
    for (const auto& item : pair.items)
      (is_array ? pair.item_type : pair.type) == GgufFile::kString ? text(item) : void(out += item);
  }
  for (const auto& tensor : file.tensors) {
    text(tensor.name);
    put(out, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const auto n : tensor.dims) put(out, n);
    put(out, tensor.type);
    put(out, tensor.offset);
  }
  out.resize((out.size() + 31) / 32 * 32);
  return out + file.data;
}

inline void change_value(GgufFile::Pair& pair, Random& random) {
  const bool is_array = pair.type == GgufFile::kArray;
  std::uint32_t& type = is_array ? pair.item_type : pair.type;
  if (random.one_in(8)) {  // another type, the bytes as before where they fit
    type = static_cast<std::uint32_t>(random.below(13));
    for (auto& item : pair.items)
      if (gguf_bytes(type) > 0) item.resize(gguf_bytes(type));
    if (type == GgufFile::kArray) pair.item_type = GgufFile::kString;
    return;
  }
  std::string* item = is_array ? change_list(pair.items, random) : &pair.items.front();
  if (item != nullptr)
    *item = type == GgufFile::kString ? changed_bytes(std::move(*item)) : changed_number(std::move(*item));
}

inline void change_tensor(GgufFile::Tensor& tensor, Random& random) {
  constexpr std::uint64_t kNumbers[] = {0, 1, 2, 3, 8, 32, 64, 256, 1 << 16, std::uint64_t{1} << 32, ~std::uint64_t{0}};
  switch (random.below(4)) {
    case 0:
      tensor.name = changed_bytes(std::move(tensor.name));
      return;
    case 1:
      tensor.type = static_cast<std::uint32_t>(random.below(40));
      return;
    case 2:
      tensor.offset += random.one_in(2) ? 32 : -std::uint64_t{32};
      return;
    default:
      if (auto* n = change_list(tensor.dims, random)) *n = kNumbers[random.below(std::size(kNumbers))];
  }
}

inline std::optional<std::string> changed_gguf(std::string_view bytes, Random& random) {
  auto file = GgufParts(bytes).file();
  if (!file) return std::nullopt;
  for (bool more = true; more; more = random.one_in(2)) {
    const auto what = random.below(8);
    if (what == 0) {
      file->data = changed_bytes(std::move(file->data));
    } else if (what < 3) {
      if (auto* tensor = change_list(file->tensors, random)) change_tensor(*tensor, random);
    } else if (auto* pair = change_list(file->pairs, random)) {
      if (random.one_in(8))
        pair->key = changed_bytes(std::move(pair->key));
      else
        change_value(*pair, random);
    }
  }
  return as_bytes(*file);
}

}  // namespace tessera::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, tessera::fuzz::changed_gguf);
}
