#include "formats/model_folder.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/open_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_any_of(std::string_view text, auto... known) {
  return ((text == known) || ...);
}

bool has_terms_of_use(const std::string& name) {
  constexpr std::array<const char*, 5> kBegins{"LICENSE", "LICENCE", "COPYING", "NOTICE", "USE_POLICY"};
  return std::any_of(kBegins.begin(), kBegins.end(), [&](const char* begin) { return name.starts_with(begin); });
}

bool is_of_a_run(const std::string& name) {
  return name.ends_with(".index.json") || name.ends_with("_results.json") ||
         is_any_of(name, "trainer_state.json", "manifest.json", "state.json", "run.json", "predict_results.txt",
                   "generated_predictions.txt");
}

}  // namespace

FolderFile folder_file(const fs::path& path) {
  const std::string name = path.filename().string(), type = path.extension().string();
  if (path.has_parent_path())
    return path.parent_path() == kNamedTemplates && type == ".jinja" ? FolderFile::kTokenizer : FolderFile::kOther;
  if (has_terms_of_use(name)) return FolderFile::kModel;
  if (name.starts_with('.') || is_of_a_run(name)) return FolderFile::kOther;
  if (is_any_of(name, "config.json", "adapter_config.json", "classifier.json")) return FolderFile::kConfig;
  if (type == ".py" || name == "generation_config.json") return FolderFile::kModel;
  // Tokenizers have files of many names, so their types decide; data sets (.jsonl, .csv) and weights are of other
  // types.
  return is_any_of(type, ".json", ".txt", ".model", ".jinja", ".spm", ".tiktoken", ".codes", ".vocab")
             ? FolderFile::kTokenizer
             : FolderFile::kOther;
}

std::span<const TokenizerForm> tokenizer_forms(TokenizerForms forms) {
  static constexpr TokenizerForm kForms[] = {
      {"tokenizer.json"},           {"spiece.model"}, {"tokenizer.model"}, {"sentencepiece.bpe.model"}, {"spm.model"},
      {"vocab.json", "merges.txt"}, {"vocab.txt"}};
  return std::span(kForms).subspan(forms == TokenizerForms::kSources ? 1 : 0);
}

std::optional<fs::path> find_tokenizer_file(const fs::path& folder, TokenizerForms forms) {
  for (const auto& form : tokenizer_forms(forms))
    if (is_there(folder / form.file) && (form.beside == nullptr || is_there(folder / form.beside)))
      return folder / form.file;
  return {};
}

std::string tokenizer_file_names(TokenizerForms forms) {
  std::string names;
  for (const auto& form : tokenizer_forms(forms)) {
    names += (names.empty() ? "" : ", ") + std::string(form.file);
    if (form.beside != nullptr) names += " with " + std::string(form.beside);
  }
  return names;
}

std::vector<fs::path> named_template_files(const fs::path& folder) {
  std::vector<fs::path> out;
  if (!fs::is_directory(folder / kNamedTemplates)) return out;
  for (const auto& entry : fs::directory_iterator(folder / kNamedTemplates))
    if (folder_file(entry.path().lexically_relative(folder)) == FolderFile::kTokenizer) out.push_back(entry.path());
  return out;
}

void remove_template_files(const fs::path& folder) {
  fs::remove(folder / kTemplateFile);
  fs::remove_all(folder / kNamedTemplates);
}

}  // namespace tessera
