#include "families/families.h"

#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "families/config_reader.h"
#include "families/decoder_families.h"
#include "families/known_keys.h"
#include "tessera/base/error.h"

namespace tessera::families {
namespace {

template <auto parse>
FamilyConfig parsed(const ConfigReader& in) {
  return parse(in);
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"bert", parsed<parse_bert_config>},
      {"bloom", parsed<parse_bloom>},
      {"camembert", parsed<parse_bert_config>},
      {"deberta", parsed<parse_bert_config>},
      {"deberta-v2", parsed<parse_bert_config>},
      {"distilbert", parsed<parse_bert_config>},
      {"electra", parsed<parse_bert_config>},
      {"falcon", parsed<parse_falcon>},
      {"gemma", parsed<parse_gemma>},
      {"gemma2", parsed<parse_gemma2>},
      {"gemma3_text", parsed<parse_gemma3>},
      {"glm", parsed<parse_glm>},
      {"glm4", parsed<parse_glm4>},
      {"gpt2", parsed<parse_gpt2>},
      {"gpt_bigcode", parsed<parse_gpt_bigcode>},
      {"gpt_neo", parsed<parse_gpt_neo>},
      {"gpt_neox", parsed<parse_gpt_neox>},
      {"gptj", parsed<parse_gptj>},
      {"granite", parsed<parse_granite>},
      {"llama", parsed<parse_llama>},
      {"ministral", parsed<parse_mistral>},
      {"mistral", parsed<parse_mistral>},
      {"mixtral", parsed<parse_mixtral>},
      {"mt5", parsed<parse_t5_config>},
      {"olmo", parsed<parse_olmo>},
      {"olmo2", parsed<parse_olmo2>},
      {"olmoe", parsed<parse_olmoe>},
      {"opt", parsed<parse_opt>},
      {"phi", parsed<parse_phi>},
      {"phi3", parsed<parse_phi3>},
      {"qwen2", parsed<parse_qwen2>},
      {"qwen2_moe", parsed<parse_qwen2_moe>},
      {"qwen3", parsed<parse_qwen3>},
      {"qwen3_moe", parsed<parse_qwen3_moe>},
      {"roberta", parsed<parse_bert_config>},
      {"smollm3", parsed<parse_smollm3>},
      {"stablelm", parsed<parse_stablelm>},
      {"starcoder2", parsed<parse_starcoder2>},
      {"t5", parsed<parse_t5_config>},
      {"umt5", parsed<parse_t5_config>},
      {"xlm-roberta", parsed<parse_bert_config>},
  };
  return kFamilies;
}

FamilyConfig parse_config(const nlohmann::json& json, const std::string& file, std::string* note) {
  const ConfigReader in(json, file);
  const auto model_type = in.get<std::string>("model_type", "");
  std::vector<std::string> names;
  std::string listed;
  for (const auto& family : families()) {
    if (family.model_type == model_type) {
      refuse_other_models(in);
      auto config = family.parse(in);
      if (note) *note = unknown_keys_note(in);
      return config;
    }
    names.push_back(family.model_type);
    listed += (listed.empty() ? "" : ", ") + family.model_type;
  }
  throw ConfigError(
      file + ": model_type '" + model_type + "' is not known (" + listed + ")" + did_you_mean(model_type, names),
      "model_type");
}

Blueprint blueprint_of(const FamilyConfig& config) {
  return std::visit([](const auto& c) { return blueprint(c); }, config);
}

const std::string& stored_dtype_of(const FamilyConfig& config) {
  return std::visit([](const auto& c) -> const std::string& { return c.stored_dtype; }, config);
}

}  // namespace tessera::families
