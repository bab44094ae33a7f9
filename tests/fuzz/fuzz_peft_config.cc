// Any bytes as adapter_config.json, its keys bound as the methods bind theirs: an error, or settings that are written
// and read back to the same, and targets that can be looked for.
#include "families/config_reader.h"
#include "fuzz/json_mutator.h"
#include "fuzz/temporary_file.h"
#include "peft/config_keys.h"
#include "peft/targets.h"
#include "tessera/base/error.h"

namespace {

using namespace tessera;

/// A key of each kind, by names that PEFT has.
struct Settings : peft::PeftConfig {
  std::int64_t r = 8, seed = 0;
  double alpha = 8, dropout = 0;
  bool flag = false;
  std::string word = "true";
  std::optional<std::vector<std::string>> feedforward;
  std::string feedforward_regex;
  std::vector<std::pair<std::string, std::int64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;
  nlohmann::json rest;

  void bind(peft::ConfigKeys& keys) {
    keys.text("task_type", task_type);
    keys.text("base_model_name_or_path", base_model_name_or_path);
    keys.flag("inference_mode", inference_mode);
    keys.names("modules_to_save", modules_to_save);
    keys.names_or_regex("target_modules", target_modules, target_regex);
    keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
    keys.integers("layers_to_transform", layers_to_transform);
    keys.names("layers_pattern", layers_pattern);
    keys.integer("r", r);
    keys.optional_integer("seed", seed);
    keys.whole_number("lora_alpha", alpha);
    keys.number("lora_dropout", dropout);
    keys.flag("fan_in_fan_out", flag);
    keys.flag_or_word("init_lora_weights", word);
    keys.names_or_regex("feedforward_modules", feedforward, feedforward_regex);
    keys.pattern("rank_pattern", ranks);
    keys.pattern("alpha_pattern", alphas);
    keys.any("corda_config", rest);
    keys.unsupported("megatron_config", nullptr);
    keys.ignored("peft_type", "LORA");
  }
};

std::string written(Settings& settings) {
  peft::ConfigKeys keys;
  settings.bind(keys);
  return keys.document().dump(2);
}

void read(const std::string& file, Settings& settings) {
  const auto document = families::read_json(file);
  const families::ConfigReader in(document, file);
  peft::ConfigKeys keys(in);
  settings.bind(keys);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  try {
    Settings first, second;
    read(folder.write("adapter_config.json", {reinterpret_cast<const char*>(data), size}), first);
    const std::string text = written(first);
    read(folder.write("adapter_config.json", text), second);
    if (written(second) != text) __builtin_trap();
    for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) {
      (void)peft::is_target(name, first);
      (void)peft::by_pattern(name, first.ranks, std::int64_t{8}, "rank_pattern");
    }
  } catch (const ConfigError&) {
  }
  return 0;
}
