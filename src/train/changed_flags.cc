#include "train/changed_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/folder.h"
#include "base/folder_names.h"
#include "base/open_file.h"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

std::string value_in(const Json& flags, const std::string& name) {
  const auto it = flags.find(name);
  if (it == flags.end()) return "not given";
  return it->is_string() ? it->get<std::string>() : it->dump();
}

Json flags_of(const Json& settings) {
  return settings.is_object() ? settings.value("flags", Json()) : Json();
}

}  // namespace

std::string changed_flags(const CheckpointOptions& options, const Json& settings) {
  if (!options.is_resumed()) return {};
  const auto folder =
      options.takes_newest() ? options.output_dir : parent_folder(without_end_slashes(options.resume_from_checkpoint));
  const std::string file = folder + "/run.json";
  if (!is_there(file)) return {};
  const auto before = flags_of(Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false));
  const auto flags = flags_of(settings);
  if (!before.is_object()) return {};
  std::set<std::string> names;
  for (const auto* all : {&before, &flags})
    for (const auto& item : all->items()) names.insert(item.key());
  for (const char* of_going_on : {"resume_from_checkpoint", "overwrite_output_dir", "output_dir"})
    names.erase(of_going_on);
  std::vector<std::string> changed;
  for (const auto& name : names) {
    const auto now = value_in(flags, name), was = value_in(before, name);
    if (now != was) changed.push_back(fmt::format("--{} {} (was {})", name, now, was));
  }
  return changed.empty() ? "" : fmt::format("  Flags that the run had otherwise: {}\n", fmt::join(changed, ", "));
}

}  // namespace tessera::train
