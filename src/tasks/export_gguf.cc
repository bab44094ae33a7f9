#include "tasks/export_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "base/open_file.h"
#include "families/config_reader.h"
#include "models/check_sizes.h"
#include "models/gguf_model.h"
#include "models/gguf_names.h"
#include "models/model.h"
#include "models/pack_layers.h"
#include "tasks/merge.h"
#include "tessera/base/error.h"
#include "text/gguf_vocabulary_of.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

/// "135M", "1.2B"; with experts "8x7.2B": how many times what one of them and the rest have.
std::string size_label(const std::vector<io::GgufTensorPlan>& tensors) {
  double parameters = 0;
  std::int64_t experts = 0;
  for (const auto& tensor : tensors) {
    const bool has_experts = tensor.name.find("_exps.") != std::string::npos;
    if (has_experts) experts = tensor.shape[0];
    parameters += static_cast<double>(tensor.numel()) / static_cast<double>(has_experts ? tensor.shape[0] : 1);
  }

  const std::pair<double, const char*> units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
  double scaled = parameters / 1e3;
  const char* suffix = "K";
  for (const auto& [unit, name] : units) {
    if (parameters <= unit) continue;
    scaled = parameters / unit;
    suffix = name;
    break;
  }
  const std::string whole = fmt::format("{:.0f}", scaled);
  const int digits = whole == "0" ? 2 : std::max(0, 2 - static_cast<int>(whole.size()));
  return fmt::format("{}{:.{}f}{}", experts > 0 ? fmt::format("{}x", experts) : "", scaled, digits, suffix);
}

/// tokenizer.json of the folder, or what it would be.
nlohmann::json tokenizer_json(const text::Tokenizer& tokenizer, const std::string& folder, const std::string& output) {
  if (is_there(folder + "/tokenizer.json")) return nlohmann::json::parse(read_text_file(folder + "/tokenizer.json"));
  const std::string made = output + ".tokenizer";
  fs::create_directories(made);
  tokenizer.save(made);
  auto json = nlohmann::json::parse(read_text_file(made + "/tokenizer.json"));
  fs::remove_all(made);
  return json;
}

bool is_one_of(const std::string& architecture, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return architecture == name; });
}

void add_tokenizer(const text::GgufVocabulary& v, io::GgufMetadata& metadata) {
  const auto add = [&](const std::string& key, io::GgufItem value) {
    metadata.emplace_back("tokenizer.ggml." + key, std::move(value));
  };
  add("model", v.model);
  add("pre", v.pre);
  add("tokens", v.tokens);
  if (!v.scores.empty()) add("scores", v.scores);
  add("token_type", v.token_types);
  if (!v.merges.empty()) add("merges", v.merges);
  const std::pair<const char*, std::int32_t> ids[] = {
      {"bos", v.bos_id},     {"eos", v.eos_id}, {"unknown", v.unk_id}, {"seperator", v.sep_id},
      {"padding", v.pad_id}, {"cls", v.cls_id}, {"mask", v.mask_id}};
  for (const auto& [name, id] : ids)
    if (id >= 0) add(std::string(name) + "_token_id", static_cast<std::uint32_t>(id));
  if (v.add_bos) add("add_bos_token", *v.add_bos);
  if (v.add_eos) add("add_eos_token", *v.add_eos);
  if (v.add_sep) add("add_sep_token", *v.add_sep);
  if (v.lowercase) add("normalizer.lowercase", *v.lowercase);
  if (v.strip_accents) add("normalizer.strip_accents", *v.strip_accents);
  if (v.add_space_prefix) add("add_space_prefix", *v.add_space_prefix);
  if (v.remove_extra_whitespaces) add("remove_extra_whitespaces", *v.remove_extra_whitespaces);
  if (!v.precompiled_charsmap.empty())
    add("precompiled_charsmap",
        std::vector<std::uint8_t>(v.precompiled_charsmap.begin(), v.precompiled_charsmap.end()));
  for (const auto& [name, text] : v.chat_templates)
    metadata.emplace_back("tokenizer.chat_template" + (name == "default" ? "" : "." + name), text);
}

/// Of a BERT, heads that readers do without may be missing.
void check_weights(const models::Model& model, const std::string& family, const std::string& folder,
                   const io::TensorSource& weights) {
  auto missing = models::missing_weights(model, weights);
  std::erase_if(missing, [&](const std::string& name) {
    const auto place = models::gguf_place(family, name);
    return place && place->stored.empty();
  });
  if (missing.empty()) return models::check_sizes(folder, weights);
  throw DataError(fmt::format("'{}' lacks the tensors {}", folder, models::few_of(missing)), folder);
}

/// How sentence-transformers pools the tokens of a text (modules.json and what it names), in the format's numbers.
std::optional<std::uint32_t> pooling_of(const std::string& folder) {
  if (!is_there(folder + "/modules.json")) return std::nullopt;
  const std::pair<const char*, std::uint32_t> kinds[] = {
      {"mean_tokens", 1}, {"cls_token", 2}, {"lasttoken", 3}};  // of those that are on, the first
  const auto modules = nlohmann::json::parse(read_text_file(folder + "/modules.json"), nullptr, false);
  for (const auto& module : modules) {
    const families::ConfigReader in(module, folder + "/modules.json");
    const bool pools = module.is_object() && in.get<std::string>("type", "").ends_with("Pooling");
    const std::string file = pools ? folder + "/" + in.get<std::string>("path", "") + "/config.json" : "";
    if (!pools || !is_there(file)) continue;
    const auto settings = families::read_json(file);
    for (const auto& [name, kind] : kinds)
      if (families::ConfigReader(settings, file).get(std::string("pooling_mode_") + name, false)) return kind;
    throw ConfigError("--gguf: '" + file + "' pools neither by mean_tokens nor cls_token nor lasttoken", "gguf");
  }
  return std::nullopt;
}

void add_pooling(const GgufRequest& r, const families::FamilyConfig& config, models::GgufExport& planned) {
  constexpr std::uint32_t kRank = 4;
  const auto& bert = std::get<families::BertConfig>(config);
  const bool ranks = bert.head == families::BertHead::kSequenceClassification;
  const auto pooling =
      ranks ? std::optional(kRank) : pooling_of(r.name_folder.empty() ? r.model_folder : r.name_folder);
  if (pooling)
    planned.metadata.emplace_back(planned.architecture + ".pooling_type", *pooling);
  else
    planned.note =
        "no modules.json says how the tokens of a text become one vector: tell readers (llama.cpp: --pooling mean)\n";
  planned.metadata.emplace_back("tokenizer.ggml.token_type_count", static_cast<std::uint32_t>(bert.type_vocab_size));
}

}  // namespace

/// "SmolLM2-135M-Instruct" -> "SmolLM2 135M Instruct", "tiny_chat" -> "Tiny_Chat": words of small letters become
/// titles.
std::string gguf_title(const std::string& folder) {
  std::string name = fs::absolute(folder).lexically_normal().filename().string(), out;
  if (name.empty()) name = fs::absolute(folder).lexically_normal().parent_path().filename().string();
  bool begins_word = true, is_lower = false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_gap = name[i] == '-' || name[i] == ' ';
    if (begins_word) {
      const std::string word = name.substr(i, name.find_first_of("- ", i) - i);
      is_lower =
          std::none_of(word.begin(), word.end(), [](char c) { return std::isupper(static_cast<unsigned char>(c)); }) &&
          !std::isdigit(static_cast<unsigned char>(word[0]));
    }
    const bool begins_title = i == 0 || !std::isalpha(static_cast<unsigned char>(name[i - 1]));
    out += is_gap                     ? ' '
           : is_lower && begins_title ? static_cast<char>(std::toupper(static_cast<unsigned char>(name[i])))
                                      : name[i];
    begins_word = is_gap;
  }
  return out;
}

std::uint32_t gguf_file_type(models::GgufForm form) {
  switch (form) {
    case models::GgufForm::kF32:
      return 0;
    case models::GgufForm::kF16:
      return 1;
    case models::GgufForm::kQ8_0:
      return 7;
    case models::GgufForm::kQ4KM:
      return 15;
  }
  return 0;
}

std::string write_gguf(const GgufRequest& r) {
  const auto json = models::read_described_config(r.model_folder);
  const auto config = families::parse_config(json, r.model_folder + "/config.json");
  const auto subject = models::gguf_subject(config);
  const auto model = models::build_model(r.model_folder, nullptr);
  const auto packed = models::packed_in_folder(r.weights, r.model_folder);
  const std::shared_ptr<const io::TensorSource> weights = packed ? models::unpacked_source(*model, packed) : r.weights;
  auto planned = models::plan_gguf(config, json, *weights, r.form);
  if (std::holds_alternative<families::BertConfig>(config)) {
    check_weights(*model, subject.family, r.model_folder, *weights);
  } else if (is_body_alone(r.model_folder, model, weights)) {  // as convert_hf_to_gguf.py
    models::check_sizes(r.model_folder, *weights);
    planned.note += "'" + r.model_folder +
                    "' has no head, and readers take the token table in its place: the file is for " +
                    "embeddings (llama-embedding), not for text\n";
  } else {
    models::check_weights(*model, *weights);
  }
  const auto tokenizer = text::open_tokenizer(r.tokenizer_folder);
  const auto root = tokenizer_json(*tokenizer, r.tokenizer_folder, r.output);
  auto vocabulary = text::gguf_vocabulary_of(*tokenizer, root, subject.vocab_size);
  const auto said = text::read_tokenizer_config(r.tokenizer_folder);
  if (said.add_bos_token) vocabulary.add_bos = said.add_bos_token;
  if (said.add_eos_token) vocabulary.add_eos = said.add_eos_token;
  if (is_one_of(planned.architecture, {"llama", "granite", "smollm3"}))
    vocabulary.add_space_prefix = said.add_prefix_space;
  if (vocabulary.model == "llama" && is_one_of(planned.architecture, {"gemma", "gemma2", "gemma3"}))
    vocabulary.add_space_prefix = false;
  const bool is_glm = is_one_of(planned.architecture, {"chatglm", "glm4"});
  if (is_glm) {  // by their names readers know them
    if (vocabulary.pre == "llama-bpe") vocabulary.pre = "glm4";
    if (vocabulary.pre == "dbrx") vocabulary.pre = "chatglm-bpe";
  }
  if (is_one_of(planned.architecture, {"chatglm", "phi2"}) && !vocabulary.add_bos) vocabulary.add_bos = false;
  if (planned.architecture == "bert") {
    if (vocabulary.model == "gpt2") vocabulary.pre = "roberta-bpe";
    vocabulary.add_sep = text::separates_twice(root);
    add_pooling(r, config, planned);
  }
  std::vector<io::GgufTensorPlan> plans;
  for (const auto& tensor : planned.tensors) plans.push_back(tensor.plan);
  io::GgufMetadata metadata = {{"general.architecture", planned.architecture},
                               {"general.type", std::string("model")},
                               {"general.name", gguf_title(r.name_folder.empty() ? r.model_folder : r.name_folder)},
                               {"general.size_label", size_label(plans)}};
  metadata.insert(metadata.end(), planned.metadata.begin(), planned.metadata.end());
  metadata.emplace_back("general.file_type", gguf_file_type(r.form));
  add_tokenizer(vocabulary, metadata);
  if (is_glm) {  // where an answer ends, too
    const auto turn = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), "<|user|>");
    if (turn != vocabulary.tokens.end())
      metadata.emplace_back("tokenizer.ggml.eot_token_id",
                            static_cast<std::uint32_t>(turn - vocabulary.tokens.begin()));
  }
  metadata.emplace_back("general.quantization_version", std::uint32_t{2});
  io::GgufWriter writer(r.output, metadata, plans);
  for (const auto& tensor : planned.tensors)
    writer.write(models::values_for_gguf(tensor, *weights).const_data_ptr<float>());
  writer.commit();
  return planned.note + fmt::format("{} with {} tensors saved in {}\n", planned.architecture, plans.size(), r.output);
}

}  // namespace tessera::tasks
