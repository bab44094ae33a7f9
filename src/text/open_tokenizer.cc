#include <fmt/format.h>

#include <filesystem>

#include "base/open_file.h"
#include "formats/gguf.h"
#include "formats/model_folder.h"
#include "tessera/base/error.h"
#include "text/convert.h"
#include "text/gguf_tokenizer.h"
#include "text/load.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

Pipeline parse_converted(const std::string& file, std::string json, const SpecialTokens& own, TokenizerConfig config) {
  config.special = own;
  auto source = std::make_shared<TokenizerSource>();
  source->json = std::move(json);
  source->folder = config.folder;
  return parse_tokenizer_json(source->json, source, file, config);
}

// Classes that make the tokenizer anew from the files that tokenizer.json came from.
bool is_made_anew(const TokenizerConfig& config) {
  return config.from_slow || (config.has_rule(kRebuilds) && config.add_prefix_space);
}

fs::path file_to_convert(const fs::path& folder) {
  if (const auto file = find_tokenizer_file(folder, TokenizerForms::kSources)) return *file;
  throw DataError(
      fmt::format(
          "{}: tokenizer_config.json asks (by add_prefix_space or from_slow) that the tokenizer be made from the "
          "files that tokenizer.json came from, but none is here; looked for {}. Add one, or remove that key",
          folder.string(), tokenizer_file_names(TokenizerForms::kSources)),
      folder.string());
}

Pipeline convert(const fs::path& path, TokenizerConfig config);

Pipeline make_anew(const fs::path& tokenizer_json, TokenizerConfig config) {
  if (!config.has_added_tokens_decoder) take_added_tokens(tokenizer_json.string(), config);
  config.prefix_is_null |= !config.add_prefix_space;  // so T5's and Llama's classes hand it on
  return convert(file_to_convert(tokenizer_json.parent_path()), std::move(config));
}

Pipeline load(const fs::path& path) {
  auto config = read_tokenizer_config(path.parent_path().string());
  if (path.extension() != ".json" || path.filename() == "vocab.json") return convert(path, std::move(config));
  if (is_made_anew(config)) return make_anew(path, std::move(config));
  return load_tokenizer_json(path.string(), config);
}

Pipeline convert(const fs::path& path, TokenizerConfig config) {
  const auto folder = path.parent_path(), name = path.filename();
  config.is_converted = true;
  if (config.has_rule(kRebuilds) && config.prefix_is_null) config.add_prefix_space = false;
  if (config.has_rule(kLowercases) && !config.clean_up_tokenization_spaces) config.clean_up_tokenization_spaces = true;
  if (config.family() == "Deberta")  // its mask takes the space before it in the slow class alone
    for (auto& token : config.named)
      if (token.content == config.special.mask && !token.flags)
        token.flags = {.content = token.content, .lstrip = true, .special = true};
  SpecialTokens special;
  std::string json;
  if (path.extension() == ".txt" && name != "merges.txt") {
    json = bert_to_json(path.string(), config, special);
  } else if (name == "vocab.json" || name == "merges.txt") {
    json = gpt2_to_json((folder / "vocab.json").string(), (folder / "merges.txt").string(), config, special);
  } else if (is_tiktoken(path.string())) {
    json = tiktoken_to_json(path.string(), config, special);
  } else {
    json = sentencepiece_to_json(path.string(), config, special);
  }
  return parse_converted(path.string(), std::move(json), special, config);
}

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& folder_or_file) {
  const fs::path path(folder_or_file);
  if (!is_there(path))
    throw DataError(fmt::format("{}: no such file or folder (expected a tokenizer)", folder_or_file), folder_or_file);
  const auto from_gguf = [](const std::string& file) {
    return make_gguf_tokenizer(gguf_vocabulary(read_gguf_header(file)));
  };
  if (path.extension() == ".gguf") return from_gguf(folder_or_file);
  if (!fs::is_directory(path)) return make_tokenizer(load(path));
  if (const auto file = find_tokenizer_file(path)) return make_tokenizer(load(*file));
  if (const auto gguf = find_gguf(folder_or_file)) return from_gguf(*gguf);
  throw DataError(fmt::format("{}: no tokenizer in this folder; looked for {}, a .gguf file", folder_or_file,
                              tokenizer_file_names()),
                  folder_or_file);
}

}  // namespace tessera::text
