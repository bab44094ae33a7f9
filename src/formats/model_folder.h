#pragma once
// What the files of a model's folder are, by their names: one list for what is fetched, copied and removed.
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

enum class FolderFile {
  kConfig,     // config.json; adapter_config.json and what stands beside it, classifier.json
  kModel,      // generation_config.json, code, terms of use: they belong to the weights
  kTokenizer,  // vocabularies, settings and chat templates; also settings of processors
  kOther,      // weights and their indexes, data sets, the state and the results of runs, hidden files, model cards
};

/// path: below the folder.
FolderFile folder_file(const std::filesystem::path& path);

/// What a tokenizer is opened from: the first of these files that is there, with the second one where it has one.
struct TokenizerForm {
  const char* file;
  const char* beside = nullptr;
};
/// kSources: without tokenizer.json, which is made from the others.
enum class TokenizerForms { kAll, kSources };
std::span<const TokenizerForm> tokenizer_forms(TokenizerForms forms = TokenizerForms::kAll);
std::optional<std::filesystem::path> find_tokenizer_file(const std::filesystem::path& folder,
                                                         TokenizerForms forms = TokenizerForms::kAll);
/// For messages: "tokenizer.json, ..., vocab.json with merges.txt, vocab.txt".
std::string tokenizer_file_names(TokenizerForms forms = TokenizerForms::kAll);

/// A tokenizer's template; where there is one, those in tokenizer_config.json do not count.
inline constexpr const char* kTemplateFile = "chat_template.jinja";
/// The folder of its further ones, NAME.jinja.
inline constexpr const char* kNamedTemplates = "additional_chat_templates";
/// Those that are there.
std::vector<std::filesystem::path> named_template_files(const std::filesystem::path& folder);
/// A processor's: {"chat_template": ...}.
inline constexpr const char* kProcessorTemplate = "chat_template.json";

/// Removes a tokenizer's: what an older one left would win over a new one's configuration.
void remove_template_files(const std::filesystem::path& folder);

}  // namespace tessera
