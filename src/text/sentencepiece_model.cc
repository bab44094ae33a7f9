#include "text/sentencepiece_model.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

// Fields of one message of the protocol buffer format, one after another.
class Message {
 public:
  Message(std::string_view bytes, std::size_t start, const std::string& file)
      : bytes_(bytes), start_(start), file_(file) {}

  // False at the end. After true, the accessors below give the field.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const auto tag = varint();
    field_ = tag >> 3;
    wire_ = static_cast<int>(tag & 7);
    switch (wire_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        take(varint());
        break;
      case 5:
        take(4);
        break;
      default:
        fail(fmt::format("unknown wire type {}", wire_));
    }
    return true;
  }

  std::uint64_t field() const { return field_; }
  std::int32_t integer() const { return expect(0), static_cast<std::int32_t>(number_); }
  bool boolean() const { return expect(0), number_ != 0; }
  std::string_view bytes() const { return expect(2), data_; }
  Message message() const { return expect(2), Message(data_, start_ + at_ - data_.size(), file_); }
  float real() const {
    expect(5);
    float out = 0;
    std::memcpy(&out, data_.data(), 4);
    return out;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: not a SentencePiece model, or damaged, at byte {}: {}", file_, start_ + at_, what),
                    file_);
  }

 private:
  void expect(int wire) const {
    if (wire_ != wire) fail(fmt::format("field {} has wire type {}, expected {}", field_, wire_, wire));
  }
  std::uint64_t varint() {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail("the data ends inside a number");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      out |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return out;
    }
    fail("a number has more than 10 bytes");
  }
  void take(std::uint64_t count) {
    if (count > bytes_.size() - at_)
      fail(fmt::format("{} bytes are announced, {} are left", count, bytes_.size() - at_));
    data_ = bytes_.substr(at_, count);
    at_ += count;
  }

  std::string_view bytes_, data_;
  std::size_t start_ = 0, at_ = 0;
  const std::string& file_;
  std::uint64_t field_ = 0, number_ = 0;
  int wire_ = 0;
};

// Field numbers: sentencepiece_model.proto of google/sentencepiece.
SentencePieceModel::Piece parse_piece(Message m) {
  SentencePieceModel::Piece out;
  while (m.next()) {
    if (m.field() == 1) out.text = m.bytes();
    if (m.field() == 2) out.score = m.real();
    if (m.field() == 3) {
      if (m.integer() < 1 || m.integer() > 6) m.fail(fmt::format("unknown type of piece {}", m.integer()));
      out.type = static_cast<SentencePieceModel::PieceType>(m.integer());
    }
  }
  if (!std::isfinite(out.score)) m.fail("a piece has no finite score");
  for (std::string_view rest = out.text; !rest.empty();) {
    const auto before = rest;
    if (next_code_point(rest) == 0xFFFD && !before.starts_with("\xEF\xBF\xBD")) m.fail("a piece is not UTF-8");
  }
  return out;
}

void parse_trainer(Message m, SentencePieceModel& out) {
  while (m.next()) switch (m.field()) {
      case 3:
        if (m.integer() < 1 || m.integer() > 4) m.fail(fmt::format("unknown model type {}", m.integer()));
        out.type = static_cast<SentencePieceModel::Type>(m.integer());
        break;
      case 24:
        out.treat_whitespace_as_suffix = m.boolean();
        break;
      case 35:
        out.byte_fallback = m.boolean();
        break;
      case 40:
        out.unk_id = m.integer();
        break;
      case 41:
        out.bos_id = m.integer();
        break;
      case 42:
        out.eos_id = m.integer();
        break;
      case 43:
        out.pad_id = m.integer();
        break;
      default:
        break;
    }
}

void parse_normalizer(Message m, SentencePieceModel& out) {
  while (m.next()) switch (m.field()) {
      case 2:
        out.precompiled_charsmap = m.bytes();
        break;
      case 3:
        out.add_dummy_prefix = m.boolean();
        break;
      case 4:
        out.remove_extra_whitespaces = m.boolean();
        break;
      case 5:
        out.escape_whitespaces = m.boolean();
        break;
      default:
        break;
    }
}

}  // namespace

SentencePieceModel parse_sentencepiece(std::string_view bytes, const std::string& file) {
  SentencePieceModel out;
  Message m(bytes, 0, file);
  while (m.next()) {
    if (m.field() == 1) out.pieces.push_back(parse_piece(m.message()));
    if (m.field() == 2) parse_trainer(m.message(), out);
    if (m.field() == 3) parse_normalizer(m.message(), out);
  }
  if (out.pieces.empty()) m.fail("it holds no pieces");
  const auto count = static_cast<std::int64_t>(out.pieces.size());
  for (auto id : {out.unk_id, out.bos_id, out.eos_id, out.pad_id})
    if (id < -1 || id >= count) m.fail(fmt::format("a special token has id {}, but there are {} pieces", id, count));
  return out;
}

}  // namespace tessera::text
