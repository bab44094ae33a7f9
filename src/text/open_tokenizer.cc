#include <fmt/format.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "text/load.h"

namespace tessera::text {

namespace fs = std::filesystem;

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& folder_or_file) {
  const fs::path path(folder_or_file);
  if (!fs::exists(path))
    throw DataError(fmt::format("{}: no such file or folder (expected a tokenizer)", folder_or_file), folder_or_file);
  if (!fs::is_directory(path)) {
    const auto config = read_tokenizer_config(path.parent_path().string());
    return make_tokenizer(path.extension() == ".json" ? load_tokenizer_json(folder_or_file, config)
                                                      : load_sentencepiece(folder_or_file, config));
  }
  for (const char* name : {"tokenizer.json", "spiece.model", "tokenizer.model"})
    if (fs::exists(path / name)) return open_tokenizer((path / name).string());
  throw DataError(
      fmt::format("{}: no tokenizer in this folder; looked for tokenizer.json, spiece.model, tokenizer.model",
                  folder_or_file),
      folder_or_file);
}

}  // namespace tessera::text
