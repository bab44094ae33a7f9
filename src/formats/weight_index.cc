#include "formats/weight_index.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <filesystem>

#include "base/file.h"
#include "base/plain_reason.h"
#include "tessera/base/error.h"

namespace tessera {

std::map<std::string, std::string> read_weight_map(const std::string& index) {
  simdjson::dom::parser parser;
  simdjson::dom::object map;
  simdjson::dom::element root;
  if (auto error = parser.parse(read_file(index)).get(root))
    throw DataError(fmt::format("{}: not a JSON file: {}", index, plain_reason(simdjson::error_message(error))), index);
  if (root["weight_map"].get(map))
    throw DataError(fmt::format("{}: expected an object \"weight_map\" (tensor name -> file name)", index), index);
  std::map<std::string, std::string> out;
  for (auto [name, value] : map) {
    std::string_view file;
    if (value.get(file)) throw DataError(fmt::format("{}: weight_map[\"{}\"] must be a file name", index, name), index);
    if (file.empty() || std::filesystem::path(file).filename() != std::filesystem::path(file))
      throw DataError(
          fmt::format("{}: weight_map[\"{}\"] is \"{}\"; expected a file beside the index", index, name, file), index);
    if (!out.emplace(name, file).second)
      throw DataError(fmt::format("{}: tensor '{}' is named twice", index, name), index);
  }
  if (out.empty()) throw DataError(fmt::format("{}: \"weight_map\" is empty", index), index);
  return out;
}

}  // namespace tessera
