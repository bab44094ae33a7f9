#pragma once
// Changes of a pickle: of its operations, whose arguments keep lengths that fit. (Lib/pickletools.py of CPython.)
#include <vector>

#include "fuzz/mutate.h"

namespace tessera::fuzz {

struct PickleOperation {
  enum class Argument { kNone, kNumber, kText, kLines };
  char code = 0;
  Argument kind = Argument::kNone;
  std::size_t length_bytes = 0;  // of kText
  std::string argument;
};

/// How long the argument is, or that of its length, by the operation's code.
inline std::pair<PickleOperation::Argument, std::size_t> argument_of(unsigned char code) {
  using Argument = PickleOperation::Argument;
  switch (code) {
    case 'K':
    case 'q':
    case 'h':
    case 0x80:
      return {Argument::kNumber, 1};
    case 'M':
      return {Argument::kNumber, 2};
    case 'J':
    case 'r':
    case 'j':
      return {Argument::kNumber, 4};
    case 'G':
    case 0x95:
      return {Argument::kNumber, 8};
    case 'U':
    case 'C':
    case 0x8a:
    case 0x8c:
      return {Argument::kText, 1};
    case 'X':
    case 'T':
    case 'B':
      return {Argument::kText, 4};
    case 0x8d:
    case 0x8e:
      return {Argument::kText, 8};
    case 'c':
      return {Argument::kLines, 0};
    default:
      return {Argument::kNone, 0};
  }
}

inline std::optional<std::vector<PickleOperation>> operations_of(std::string_view bytes) {
  using Argument = PickleOperation::Argument;
  std::vector<PickleOperation> out;
  while (!bytes.empty()) {
    const auto [kind, width] = argument_of(static_cast<unsigned char>(bytes[0]));
    PickleOperation one{bytes[0], kind, width, {}};
    bytes.remove_prefix(1);
    if (width > bytes.size()) return std::nullopt;
    std::uint64_t length = width;
    if (kind == Argument::kText) {
      length = 0;
      std::memcpy(&length, bytes.data(), width);
      bytes.remove_prefix(width);
    } else if (kind == Argument::kLines) {  // a module's line and a name's
      const auto first = bytes.find('\n'), second = first == bytes.npos ? first : bytes.find('\n', first + 1);
      if (second == bytes.npos) return std::nullopt;
      length = second + 1;
    }
    if (length > bytes.size()) return std::nullopt;
    one.argument = bytes.substr(0, length);
    bytes.remove_prefix(length);
    out.push_back(std::move(one));
  }
  return out;
}

inline std::string as_bytes(const std::vector<PickleOperation>& operations) {
  std::string out;
  for (const auto& one : operations) {
    out += one.code;
    const std::uint64_t length = one.argument.size();
    out.append(reinterpret_cast<const char*>(&length),
               one.length_bytes * (one.kind == PickleOperation::Argument::kText));
    out += one.argument;
  }
  return out;
}

inline void change_operation(PickleOperation& one, Random& random) {
  using Argument = PickleOperation::Argument;
  constexpr std::string_view kPlain =
      "N\x88\x89()]}tld\x85\x86\x87"
      "aesu01\x94R\x93Q\x81"
      "b.";
  if (one.kind == Argument::kNone || random.one_in(8))
    one = {kPlain[random.below(kPlain.size())], Argument::kNone, 0, {}};
  else if (one.kind == Argument::kNumber)
    one.argument = changed_number(std::move(one.argument));
  else
    one.argument = changed_bytes(std::move(one.argument), one.length_bytes == 1 && one.argument.size() > 200 ? 0 : 32);
}

inline std::optional<std::string> changed_pickle(std::string_view bytes, Random& random) {
  auto operations = operations_of(bytes);
  if (!operations) return std::nullopt;
  for (bool more = true; more; more = random.one_in(2))
    if (auto* one = change_list(*operations, random)) change_operation(*one, random);
  return as_bytes(*operations);
}

}  // namespace tessera::fuzz
