// The packed matrices of a folder, as one source.
#include "quant/packed_source.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/tensor_table.h"
#include "quant/stored_matrix.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

class StoredPacked final : public PackedSource {
 public:
  StoredPacked(std::shared_ptr<const io::TensorSource> stored, StoredMatrices found)
      : stored_(std::move(stored)), matrices_(std::move(found.by_name)) {
    auto hidden = std::move(found.hidden);
    for (const auto& [name, matrix] : matrices_) add(name, matrix, hidden);
    for (const auto& info : stored_->tensors())
      if (!hidden.contains(info.name)) table_.add(info);
    table_.sort();
  }

  std::shared_ptr<const tensor::Codec> codec(const std::string& name) const override {
    const auto found = matrices_.find(name);
    return found == matrices_.end() ? nullptr : found->second.codec;
  }
  const std::vector<io::TensorInfo>& tensors() const override { return table_.all(); }
  const io::TensorInfo* find(const std::string& name) const override { return table_.find(name); }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto found = matrices_.find(name);
    if (found != matrices_.end()) {
      io::check_elements(*find(name), begin, out);
      return read_values(found->second, begin, out);
    }
    const auto* place = place_of(name);
    if (!place) return stored_->read(name, begin, std::move(out));
    if (const auto* stored = std::get_if<std::string>(place)) return stored_->read(*stored, begin, std::move(out));
    out.copy_(std::get<at::Tensor>(*place).view(-1).narrow(0, begin, out.numel()));
  }

  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto* place = place_of(name);
    if (!place) return stored_->read_bytes(name, begin, std::move(out));
    read_field(*place, begin, out);
  }
  std::optional<io::MappedTensor> map(const std::string& name) const override {
    return place_of(name) ? std::nullopt : stored_->map(name);
  }
  std::optional<io::MappedTensor> map_bytes(const std::string& name) const override {
    const auto* place = place_of(name);
    if (!place) return stored_->map_bytes(name);
    const auto* stored = std::get_if<std::string>(place);
    return stored ? stored_->map_bytes(*stored) : std::nullopt;
  }

 private:
  using Place = std::variant<std::string, at::Tensor>;

  const Place* place_of(const std::string& name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &found->second;
  }

  void add(const std::string& name, const StoredMatrix& m, std::set<std::string>& hidden) {
    const auto fields = m.codec->fields(m.rows, m.columns);
    std::string file;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const auto& field = fields[i];
      io::TensorInfo info{field.full_name(name), field.dtype, field.shape, file};
      const auto bytes = info.nbytes();
      if (const auto* from = std::get_if<std::string>(&m.fields[i])) {
        const auto* stored = stored_->find(*from);
        if (!stored)
          refuse_tensor({name, m.dtype, {m.rows, m.columns}, file},
                        fmt::format("lacks '{}' ({} bytes of {}), which its form, {}, needs", *from, bytes,
                                    c10::toString(field.dtype), m.codec->name()));
        check(*stored, field, bytes, m);
        hidden.insert(*from);
        info.file = file = stored->file;
      }
      if (field.is_codes()) info = {name, m.dtype, {m.rows, m.columns}, file, bytes};
      places_.emplace(info.name, m.fields[i]);
      table_.add(std::move(info));
    }
  }

  /// Codes that are bytes may have any dtype in the file.
  static void check(const io::TensorInfo& stored, const tensor::PackedField& field, std::int64_t bytes,
                    const StoredMatrix& m) {
    const bool is_dtype = stored.dtype == field.dtype || (field.is_codes() && field.dtype == at::kByte);
    if (stored.nbytes() == bytes && is_dtype) return;
    const auto cast = field.is_codes() && stored.nbytes() > bytes && stored.numel() == bytes;
    refuse_tensor(stored,
                  fmt::format("has {} bytes of {}; expected, of a matrix of {} x {} in {}, {} bytes of {}{}",
                              stored.nbytes(), c10::toString(stored.dtype), m.rows, m.columns, m.codec->name(), bytes,
                              c10::toString(field.dtype), cast ? ": its codes were cast, which destroys them" : ""));
  }

  void read_field(const Place& place, std::int64_t begin, const at::Tensor& out) const {
    if (const auto* stored = std::get_if<std::string>(&place)) return stored_->read_bytes(*stored, begin, out);
    const auto& value = std::get<at::Tensor>(place);
    TESSERA_CHECK(begin + out.numel() <= static_cast<std::int64_t>(value.nbytes()), "a value is read inside its bytes");
    std::memcpy(out.mutable_data_ptr(), static_cast<const std::byte*>(value.const_data_ptr()) + begin,
                static_cast<std::size_t>(out.numel()));
  }

  /// Whole rows around the range are unpacked, some at a time.
  void read_values(const StoredMatrix& m, std::int64_t begin, const at::Tensor& out) const {
    const auto matrix = whole(m);
    const auto columns = m.columns, rows_a_time = std::max<std::int64_t>(1, (1 << 20) / columns);
    for (std::int64_t done = 0; done < out.numel();) {
      const auto at = begin + done, row = at / columns, skipped = at % columns;
      const auto rows = std::min({rows_a_time, m.rows - row, (skipped + out.numel() - done + columns - 1) / columns});
      const auto values = tensor::unpack(matrix, {row, rows, 0, columns}, at::kFloat).view(-1);
      const auto count = std::min(out.numel() - done, values.numel() - skipped);
      out.narrow(0, done, count).copy_(values.narrow(0, skipped, count));
      done += count;
    }
  }

  tensor::PackedMatrix whole(const StoredMatrix& m) const {
    tensor::PackedMatrix matrix{m.codec, m.rows, m.columns, {}};
    for (const auto& field : m.codec->fields(m.rows, m.columns)) {
      matrix.fields.push_back(at::empty(field.shape, field.dtype));
      read_field(m.fields[matrix.fields.size() - 1], 0, matrix.fields.back().view(-1).view(at::kByte));
    }
    return matrix;
  }

  std::shared_ptr<const io::TensorSource> stored_;
  std::map<std::string, StoredMatrix> matrices_;
  std::map<std::string, Place> places_;  // by the names that are shown
  io::TensorTable table_;
};

}  // namespace

void refuse_tensor(const io::TensorInfo& info, const std::string& what) {
  throw DataError(
      fmt::format("{}: tensor '{}': {}. Download the folder again, or make it anew from the model that it was "
                  "packed from",
                  info.file, info.name, what),
      info.file);
}

std::shared_ptr<PackedSource> stored_packed(std::shared_ptr<const io::TensorSource> stored,
                                            const StoredSettings& settings) {
  if (std::dynamic_pointer_cast<const PackedSource>(stored)) return nullptr;  // nothing is left to unpack
  StoredMatrices found;
  find_four_bit(*stored, found);
  find_int8(*stored, settings.int8_threshold, found);
  find_grouped(*stored, settings, found);
  if (found.by_name.empty()) return nullptr;
  return std::make_shared<StoredPacked>(std::move(stored), std::move(found));
}

}  // namespace tessera::quant
