#include "checkpoint/model_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "base/plain_reason.h"
#include "families/bert_config.h"
#include "families/config_reader.h"
#include "formats/model_folder.h"
#include "io/safetensors_dtype.h"
#include "models/gguf_model.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using ConfigJson = nlohmann::ordered_json;

constexpr const char* kPadding = "pad_token_id";

void copy_file_to(const fs::path& file, const fs::path& folder) {
  write_file_atomically((folder / file.filename()).string(), read_file(file.string()));
}

void copy_named_templates(const fs::path& from, const fs::path& to) {
  const auto files = named_template_files(from);
  if (!files.empty()) fs::create_directories(to / kNamedTemplates);
  for (const auto& file : files) copy_file_to(file, to / kNamedTemplates);
}

bool names_token(const ConfigJson& value, std::int64_t id) {
  return value.is_array() ? std::find(value.begin(), value.end(), id) != value.end() : value == id;
}

void align(const TokenId& token, ConfigJson& config) {
  const auto own = config.find(token.key);
  const bool is_same = own == config.end() ? token.id == token.of_model : names_token(*own, token.id);
  if (token.id >= 0 && !is_same) config[token.key] = token.id;
}

void align_generation(const TokenId& token, ConfigJson& config) {
  if (token.id < 0) return;
  ConfigJson& own = config[token.key];
  if (names_token(own, token.id)) return;
  const bool ends = token.key == "eos_token_id" && !own.is_null();
  ConfigJson all = {token.id};
  if (ends && own.is_array()) all.insert(all.end(), own.begin(), own.end());
  if (ends && !own.is_array()) all.push_back(own);
  own = ends ? all : ConfigJson(token.id);
}

ConfigJson read_config(const std::string& bytes, const fs::path& file) {
  try {
    return ConfigJson::parse(bytes);
  } catch (const ConfigJson::exception& e) {
    throw DataError(file.string() + ": " + plain_reason(e), file.string());
  }
}

void name_classes(const ClassifierNames& classifier, ConfigJson& config) {
  config["architectures"] = {classifier.architecture};
  if (!classifier.problem_type.empty()) config["problem_type"] = classifier.problem_type;
  config.erase("num_labels");  // the number of names
  config["id2label"] = config["label2id"] = ConfigJson::object();
  for (std::size_t i = 0; i < classifier.labels.size(); ++i) {
    config["id2label"][std::to_string(i)] = classifier.labels[i];
    config["label2id"][classifier.labels[i]] = i;
  }
}

/// False: it says all that already.
bool apply(const ConfigChanges& changes, ConfigJson& config) {
  const ConfigJson before = config;
  if (changes.vocab_size > 0) config["vocab_size"] = changes.vocab_size;
  if (changes.quantization) config["quantization_config"] = families::quantization_json(*changes.quantization);
  if (changes.unpacked) config.erase("quantization_config");
  if (changes.untied) config["tie_word_embeddings"] = false;
  if (changes.dtype) {
    const auto& choices = dtype_choices();
    const auto said = std::find_if(choices.begin(), choices.end(),
                                   [&](const auto& choice) { return chosen_dtype(choice.second) == changes.dtype; });
    if (said != choices.end()) {
      if (!config.contains("dtype")) config["torch_dtype"] = said->first;  // which every version of transformers reads
      for (const char* key : {"dtype", "torch_dtype"})
        if (config.contains(key)) config[key] = said->first;
    }
  }
  const bool keeps_padding = families::counts_from_padding(config.value("model_type", std::string()));
  for (const TokenId& token : changes.token_ids)
    if (!keeps_padding || token.key != kPadding) align(token, config);
  if (changes.classifier) {
    name_classes(*changes.classifier, config);
    const auto padding = changes.classifier->pad_token_id;
    if (padding >= 0 && !keeps_padding) config[kPadding] = padding;
  }
  return config != before;
}

void write_config(const std::string& from, const fs::path& to, const ConfigChanges& changes, bool elsewhere) {
  const auto stored = fs::path(from) / "config.json", written = to / "config.json";
  const bool has_file = is_there(stored);
  if (!has_file && !models::gguf_file_of(from)) return;  // users' own modules have no config
  const std::string bytes =
      has_file ? read_file(stored.string()) : json_text(models::read_model_config(from), 2) + "\n";
  auto config = read_config(bytes, stored);
  if (apply(changes, config)) {
    write_file_atomically(written.string(), json_text(config, 2) + "\n");
  } else if (elsewhere) {
    write_file_atomically(written.string(), bytes);
  }
}

void write_generation_config(const fs::path& file, const std::vector<TokenId>& token_ids) {
  if (token_ids.empty() || !is_there(file)) return;
  auto config = read_config(read_file(file.string()), file);
  const ConfigJson before = config;
  for (const TokenId& token : token_ids) align_generation(token, config);
  if (config != before) write_file_atomically(file.string(), json_text(config, 2) + "\n");
}

bool is_elsewhere(const fs::path& from, const fs::path& to) {
  return !is_there(from) || !fs::equivalent(from, to);
}

void copy_kind(const fs::path& from, const fs::path& to, FolderFile kind) {
  if (!fs::is_directory(from)) return;
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.is_regular_file() && folder_file(entry.path().filename()) == kind) copy_file_to(entry.path(), to);
}

/// The folder of a tokenizer that may be named by one of its files. A GGUF file's is not a file that could be copied.
fs::path folder_of_tokenizer(const fs::path& path) {
  if (fs::is_directory(path) || path.extension() == ".gguf") return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

void write_classifier_file(const ClassifierNames& classifier, const std::string& adapter_folder) {
  ConfigJson json = ConfigJson::object();
  name_classes(classifier, json);
  write_file_atomically((fs::path(adapter_folder) / kClassifierFile).string(), json_text(json, 2) + "\n");
}

std::optional<ClassifierNames> read_classifier_file(const std::string& adapter_folder) {
  const auto file = (fs::path(adapter_folder) / kClassifierFile).string();
  if (!is_there(file)) return {};
  const auto json = families::read_json(file);
  const families::ConfigReader in(json, file);
  ClassifierNames names{.labels = {},
                        .problem_type = in.get<std::string>("problem_type", ""),
                        .pad_token_id = in.token("pad_token_id", -1)};
  const auto by_id = in.get<std::map<std::string, std::string>>("id2label", {});
  for (std::size_t i = 0; by_id.contains(std::to_string(i)); ++i) names.labels.push_back(by_id.at(std::to_string(i)));
  return names;
}

void copy_model_files(const ModelFiles& from, const std::string& to, const ConfigChanges& changes) {
  if (!from.model.empty()) {
    const bool elsewhere = is_elsewhere(from.model, to);
    write_config(from.model, to, changes, elsewhere);
    if (elsewhere) copy_kind(from.model, to, FolderFile::kModel);
    write_generation_config(fs::path(to) / "generation_config.json", changes.token_ids);
  }
  if (from.tokenizer.empty()) return;
  const fs::path tokenizer = folder_of_tokenizer(from.tokenizer);
  if (!is_elsewhere(tokenizer, to)) return;
  remove_template_files(to);
  fs::remove(fs::path(to) / kProcessorTemplate);
  copy_kind(tokenizer, to, FolderFile::kTokenizer);
  copy_named_templates(tokenizer, to);
}

bool has_tokenizer(const std::string& folder) {
  return !folder.empty() && find_tokenizer_file(folder).has_value();
}

std::string tokenizer_among(const std::vector<std::string>& folders) {
  const auto found = std::find_if(folders.begin(), folders.end(), has_tokenizer);
  return found != folders.end() ? *found : folders.empty() ? std::string() : folders.back();
}

const std::vector<std::pair<std::string, WeightDtype>>& dtype_choices() {
  static const std::vector<std::pair<std::string, WeightDtype>> kChoices = {{"auto", WeightDtype::kAuto},
                                                                            {"float32", WeightDtype::kFloat32},
                                                                            {"bfloat16", WeightDtype::kBFloat16},
                                                                            {"float16", WeightDtype::kFloat16}};
  return kChoices;
}

std::optional<at::ScalarType> chosen_dtype(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kAuto:
      break;
    case WeightDtype::kFloat32:
      return at::kFloat;
    case WeightDtype::kBFloat16:
      return at::kBFloat16;
    case WeightDtype::kFloat16:
      return at::kHalf;
  }
  return std::nullopt;
}

at::ScalarType chosen_dtype(WeightDtype dtype, const families::ConfigReader& config) {
  const auto chosen = chosen_dtype(dtype);
  return chosen ? *chosen : io::safetensors_dtype(families::stored_dtype(config)).value_or(at::kFloat);
}

at::ScalarType stored_as(at::ScalarType own, std::optional<at::ScalarType> chosen) {
  return chosen && at::isFloatingType(own) ? *chosen : own;
}

at::Tensor to_stored(const at::Tensor& tensor, at::ScalarType dtype, const std::string& name) {
  const at::Tensor stored = tensor.to(stored_as(tensor.scalar_type(), dtype));
  if (stored.scalar_type() == at::kHalf && stored.isinf().any().item<bool>())
    throw CheckpointError("'" + name + "' has values beyond 65504, the largest that float16 holds; choose bfloat16 " +
                              "or float32 for what is saved",
                          name);
  return stored;
}

}  // namespace tessera::checkpoint
