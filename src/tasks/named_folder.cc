#include "tasks/named_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

/// The last part of a path, which may end with a slash.
std::string last_part(const std::string& folder) {
  const auto path = std::filesystem::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

NamedFolder parsed(const std::string& word, const std::string& flag) {
  const auto equals = word.find('=');
  const bool named = equals != std::string::npos && word.find('/') > equals;
  NamedFolder out =
      named ? NamedFolder{word.substr(0, equals), word.substr(equals + 1)} : NamedFolder{last_part(word), word};
  if (out.folder.empty())
    throw ConfigError(fmt::format("{} expects a folder or NAME=FOLDER, found '{}'", flag, word), flag.substr(2));
  if (named && (out.name.empty() || out.name.find('.') != std::string::npos)) {
    throw ConfigError(fmt::format("{}: the name in '{}' must not be empty or hold a dot", flag, word), flag.substr(2));
  }
  return out;
}

}  // namespace

std::vector<NamedFolder> named_folders(const std::vector<std::string>& words, const std::string& flag) {
  std::vector<NamedFolder> out;
  std::map<std::string, std::string> known;
  for (const auto& word : words) {
    auto item = parsed(word, flag);
    const auto [first, is_new] = known.try_emplace(item.name, item.folder);
    if (!is_new) {
      throw ConfigError(fmt::format("{}: two folders are named '{}': '{}' and '{}'; give names, as in {} a=DIR", flag,
                                    item.name, first->second, item.folder, flag),
                        flag.substr(2));
    }
    out.push_back(std::move(item));
  }
  return out;
}

}  // namespace tessera::tasks
