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

/// state.json or dataset_dict.json. Where the file is no JSON object, no key is found.
struct Listing {
  explicit Listing(const fs::path& path) : file(path.string()) {
    try {
      root = chat::parse_json(read_file(file));
    } catch (const chat::TemplateError& e) {
      throw DataError(fmt::format("{}: {}", file, e.message), file);
    }
  }
  const Value* find(const char* key) const {
    const auto* dict = root.get<chat::DictPtr>();
    const Value* value = dict ? (*dict)->find(std::string_view(key)) : nullptr;
    return value && !value->is_none() ? value : nullptr;
  }
  /// A list of texts, or of objects with a text below `member`. Empty: there is none.
  std::vector<std::string> texts(const char* key, const char* member = nullptr) const {
    const Value* value = find(key);
    std::vector<std::string> out;
    if (!value) return out;
    const auto* list = value->get<chat::ListPtr>();
    for (std::size_t i = 0; list && i < (*list)->items.size(); ++i) {
      const Value* item = &(*list)->items[i];
      if (const auto* dict = member ? item->get<chat::DictPtr>() : nullptr)
        item = (*dict)->find(std::string_view(member));
      if (!item || !item->is_text()) break;
      out.push_back(item->text());
    }
    if (!list || out.size() != (*list)->items.size())
      throw DataError(fmt::format("{}: '{}' is no list as save_to_disk writes it", file, key), file);
    return out;
  }

  std::string file;
  Value root;
};

std::vector<std::string> files_of(const fs::path& folder, const Listing& state) {
  for (const char* key : {"_indices_data_files", "_indices_files"})  // of datasets 1
    if (!state.texts(key, "filename").empty())
      throw DataError(fmt::format("{}: '{}' says that the rows have another order than in the files, which is not "
                                  "followed: load and save the data set again, with datasets 2 or later",
                                  state.file, key),
                      state.file);
  std::vector<std::string> out;
  for (const auto& name : state.texts("_data_files", "filename")) {
    const auto file = (folder / name).string();
    if (fs::path(name).filename() != name)
      throw DataError(fmt::format("{}: '{}' is not the name of a file beside it", state.file, name), state.file);
    if (!is_there(file))
      throw DataError(fmt::format("{}: lists '{}', which is not there", state.file, name), state.file);
    out.push_back(file);
  }
  if (out.empty()) throw DataError(fmt::format("{}: '_data_files' lists no file", state.file), state.file);
  return out;
}

}  // namespace

bool choose_saved(const fs::path& folder, std::vector<SplitFiles>& splits,
                  const std::function<std::vector<std::string>(const std::string&)>& words_for) {
  const fs::path dict = folder / kDict;
  if (!is_there(dict.string())) {
    if (!is_there((folder / kState).string())) return false;
    const Listing state(folder / kState);
    if (!state.find("_data_files")) return false;  // another program's
    splits.front().files = files_of(folder, state);
    return true;
  }
  const auto names = Listing(dict).texts("splits");
  if (names.empty()) return false;
  for (auto& split : splits)
    for (const auto& word : words_for(split.name))
      if (split.files.empty() && std::find(names.begin(), names.end(), word) != names.end())
        split.files = files_of(folder / word, Listing(folder / word / kState));
  if (!splits.front().files.empty()) return true;
  throw DataError(fmt::format("{}: there is no split '{}'; the splits are {}", dict.string(), splits.front().name,
                              fmt::join(names, ", ")),
                  dict.string());
}

}  // namespace tessera::data
