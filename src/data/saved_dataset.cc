#include "data/saved_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/file.h"
#include "base/open_file.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using chat::Value;

constexpr const char *kDict = "dataset_dict.json", *kState = "state.json";

/// A key of a JSON file; none where it is missing.
Value value_of(const fs::path& file, const char* key) {
  try {
    const Value root = chat::parse_json(read_file(file.string()));
    const auto* dict = root.get<chat::DictPtr>();
    const Value* value = dict ? (*dict)->find(std::string_view(key)) : nullptr;
    return value ? *value : Value();
  } catch (const chat::TemplateError& e) {
    throw DataError(fmt::format("{}: {}", file.string(), e.message), file.string());
  }
}

/// A list of texts, or of objects with a text below `member`. Empty: there is none.
std::vector<std::string> texts_of(const fs::path& file, const char* key, const char* member = nullptr) {
  const Value value = value_of(file, key);
  std::vector<std::string> out;
  if (value.is_none()) return out;
  const auto* list = value.get<chat::ListPtr>();
  for (std::size_t i = 0; list && i < (*list)->items.size(); ++i) {
    const Value* item = &(*list)->items[i];
    if (const auto* dict = member ? item->get<chat::DictPtr>() : nullptr)
      item = (*dict)->find(std::string_view(member));
    if (!item || !item->is_text()) break;
    out.push_back(item->text());
  }
  if (!list || out.size() != (*list)->items.size())
    throw DataError(fmt::format("{}: '{}' is no list as save_to_disk writes it", file.string(), key), file.string());
  return out;
}

std::vector<std::string> files_of(const fs::path& folder) {
  const fs::path state = folder / kState;
  for (const char* key : {"_indices_data_files", "_indices_files"})  // of datasets 1
    if (!texts_of(state, key, "filename").empty())
      throw DataError(fmt::format("{}: '{}' says that the rows have another order than in the files, which is not "
                                  "followed: load and save the data set again, with datasets 2 or later",
                                  state.string(), key),
                      state.string());
  std::vector<std::string> out;
  for (const auto& name : texts_of(state, "_data_files", "filename")) {
    const auto file = (folder / name).string();
    if (fs::path(name).filename() != name)
      throw DataError(fmt::format("{}: '{}' is not the name of a file beside it", state.string(), name),
                      state.string());
    if (!is_there(file))
      throw DataError(fmt::format("{}: lists '{}', which is not there", state.string(), name), state.string());
    out.push_back(file);
  }
  if (out.empty()) throw DataError(fmt::format("{}: '_data_files' lists no file", state.string()), state.string());
  return out;
}

/// Other programs have a state.json, too.
bool is_saved(const fs::path& folder) {
  return is_there((folder / kState).string()) && !value_of(folder / kState, "_data_files").is_none();
}

}  // namespace

bool choose_saved(const fs::path& folder, std::vector<SplitFiles>& splits,
                  const std::function<std::vector<std::string>(const std::string&)>& words_for) {
  const fs::path dict = folder / kDict;
  if (!is_there(dict.string())) {
    if (!is_saved(folder)) return false;
    splits.front().files = files_of(folder);
    return true;
  }
  const auto names = texts_of(dict, "splits");
  if (names.empty()) return false;
  for (auto& split : splits)
    for (const auto& word : words_for(split.name))
      if (split.files.empty() && std::find(names.begin(), names.end(), word) != names.end())
        split.files = files_of(folder / word);
  if (!splits.front().files.empty()) return true;
  throw DataError(fmt::format("{}: there is no split '{}'; the splits are {}", dict.string(), splits.front().name,
                              fmt::join(names, ", ")),
                  dict.string());
}

}  // namespace tessera::data
