#include "tasks/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "base/grouped.h"
#include "base/json_text.h"
#include "checkpoint/describe.h"
#include "config/options.h"

namespace tessera::tasks {
namespace {

using InspectJson = nlohmann::ordered_json;
constexpr int kDamaged = 1;

std::string text_of(const InspectJson& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

void print_part(const InspectJson& part, bool tensors, std::ostream& out) {
  out << fmt::format("{}: {}\n", text_of(part["name"]), text_of(part["kind"]));
  if (part.contains("error")) {
    out << fmt::format("  cannot be read: {}\n", text_of(part["error"]));
    return;
  }
  std::vector<std::string> dtypes;
  for (const auto& [name, elements] : part["dtypes"].items())
    dtypes.push_back(fmt::format("{} {}", grouped(elements.get<std::int64_t>()), name));
  out << fmt::format("  {} tensors, {} bytes: {}\n", part["tensors"].size(), grouped(part["bytes"].get<std::int64_t>()),
                     fmt::join(dtypes, ", "));
  if (!tensors) return;
  for (const auto& t : part["tensors"])
    out << fmt::format("  {} {} {}\n", text_of(t["name"]), text_of(t["dtype"]), json_text(t["shape"]));
}

void print(const InspectJson& found, bool tensors, std::ostream& out) {
  for (const auto& [key, value] : found.items()) {
    if (key == "parts" || key == "checkpoints" || key == "damaged") continue;
    out << fmt::format("{}: {}\n", key, text_of(value));
  }
  if (found.contains("checkpoints"))
    for (const auto& c : found["checkpoints"]) out << fmt::format("{}: {}\n", text_of(c["name"]), text_of(c["state"]));
  for (const auto& part : found["parts"]) print_part(part, tensors, out);
}

}  // namespace

int inspect(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string path;
  bool json = false, tensors = false, checksums = true;
  config::OptionTable table("tessera inspect",
                            "says what a checkpoint, model or weight file holds; 1 when it is damaged");
  table.positional(&path, "PATH", "a folder or a weight file");
  table.example("out/checkpoint-100 --tensors");
  table.add(&json, {"--json"}, "print one JSON object, with every tensor");
  table.add(&tensors, {"--tensors"}, "list every tensor");
  table.add(&checksums, {"--checksums"}, "read all files of a checkpoint and compare their checksums");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const auto found =
      checkpoint::describe(path, checksums ? checkpoint::Checksums::kVerify : checkpoint::Checksums::kSizesOnly);
  if (json) {
    out << json_text(found, 2) << "\n";
  } else {
    print(found, tensors, out);
  }
  return found["damaged"].get<bool>() ? kDamaged : 0;
}

}  // namespace tessera::tasks
