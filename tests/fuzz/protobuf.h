#pragma once
// Changes of a message of protocol buffers: of its fields and those of messages in it, with lengths that fit.
#include <vector>

#include "fuzz/mutate.h"

namespace tessera::fuzz {

struct ProtobufField {
  std::uint64_t number = 0;
  int wire = 0;
  std::string value;  // of a number its bytes
};

inline void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

inline std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t out = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    out |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return out;
  }
  return std::nullopt;
}

inline std::optional<std::vector<ProtobufField>> fields_of(std::string_view bytes) {
  std::vector<ProtobufField> out;
  while (!bytes.empty()) {
    const auto tag = take_varint(bytes);
    if (!tag) return std::nullopt;
    ProtobufField field{*tag >> 3, static_cast<int>(*tag & 7), {}};
    const std::string_view before = bytes;
    std::optional<std::uint64_t> length;
    if (field.wire == 0 && take_varint(bytes)) length = before.size() - bytes.size(), bytes = before;
    if (field.wire == 1) length = 8;
    if (field.wire == 2) length = take_varint(bytes);
    if (field.wire == 5) length = 4;
    if (!length || *length > bytes.size()) return std::nullopt;
    field.value = bytes.substr(0, *length);
    bytes.remove_prefix(*length);
    out.push_back(std::move(field));
  }
  return out;
}

inline std::string as_bytes(const std::vector<ProtobufField>& fields) {
  std::string out;
  for (const auto& field : fields) {
    put_varint(out, field.number << 3 | static_cast<unsigned>(field.wire));
    if (field.wire == 2) put_varint(out, field.value.size());
    out += field.value;
  }
  return out;
}

inline std::optional<std::string> changed_protobuf(std::string_view bytes, Random& random);

inline void change_field(ProtobufField& field, Random& random) {
  if (field.wire == 2) {
    const auto inner = random.one_in(4) ? std::nullopt : changed_protobuf(field.value, random);
    field.value = inner ? *inner : changed_bytes(std::move(field.value));
  } else if (field.wire == 0) {
    field.value.clear();
    put_varint(field.value, random.one_in(4) ? ~std::uint64_t{0} >> random.below(64) : random.below(50));
  } else {
    field.value = changed_number(std::move(field.value));
  }
  if (random.one_in(16)) field.number = 1 + random.below(45);
}

inline std::optional<std::string> changed_protobuf(std::string_view bytes, Random& random) {
  auto fields = fields_of(bytes);
  if (!fields) return std::nullopt;
  for (bool more = true; more; more = random.one_in(4))
    if (auto* field = change_list(*fields, random)) change_field(*field, random);
  return as_bytes(*fields);
}

}  // namespace tessera::fuzz
