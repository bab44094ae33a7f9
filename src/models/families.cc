#include "models/families.h"

#include "base/nearest.h"
#include "models/bert_model.h"
#include "models/causal_lm.h"
#include "models/decoder_families.h"
#include "models/t5_model.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

std::shared_ptr<Model> build_t5(const FamilyInput& in, ModelConfig& out) {
  const auto t5 = parse_t5_config(in.json, in.file);
  out.kind = ModelKind::kSeq2Seq;
  out.no_split_classes = {t5.class_prefix + "Block"};
  out.default_lora_targets = {"q", "v"};
  out.vocab_size = t5.vocab_size;
  out.pad_token_id = t5.pad_token_id;
  out.eos_token_id = t5.eos_token_id;
  out.decoder_start_token_id = t5.decoder_start_token_id;
  out.task_type = "SEQ_2_SEQ_LM";
  out.stored_dtype = t5.stored_dtype;
  return std::make_shared<T5ForConditionalGeneration>(t5, in.dtype);
}

template <DecoderConfig (*parse)(const nlohmann::json&, const std::string&)>
std::shared_ptr<Model> build_decoder(const FamilyInput& in, ModelConfig& out) {
  auto c = parse(in.json, in.file);
  out.kind = ModelKind::kCausal;
  out.no_split_classes = {c.classes.layer};
  out.default_lora_targets = c.lora_targets;
  out.vocab_size = c.vocab_size;
  out.pad_token_id = c.pad_token_id;
  out.eos_token_id = c.eos_token_id;
  out.decoder_start_token_id = c.bos_token_id;
  out.task_type = "CAUSAL_LM";
  out.output_embedding = c.names.head;
  out.stored_dtype = c.stored_dtype;
  out.max_positions = c.position == PositionKind::kLearned ? c.position_rows : 0;
  return std::make_shared<CausalLm>(std::move(c), in.dtype);
}

std::shared_ptr<Model> build_bert(const FamilyInput& in, ModelConfig& out) {
  const auto c = parse_bert_config(in.json, in.file);
  const bool classifies = c.head == BertHead::kSequenceClassification;
  out.kind = classifies ? ModelKind::kSequenceClassification : ModelKind::kMaskedLm;
  out.no_split_classes = {c.class_prefix + "Layer", c.class_prefix + "Embeddings", c.class_prefix + "SelfOutput"};
  out.default_lora_targets = {"query", "value"};
  out.vocab_size = c.vocab_size;
  out.pad_token_id = c.pad_token_id;
  out.task_type = classifies ? "SEQ_CLS" : "";
  out.output_embedding = c.roberta ? "lm_head.decoder" : "cls.predictions.decoder";
  out.stored_dtype = c.stored_dtype;
  out.max_positions = c.longest_row();
  return make_bert(c, in.dtype);
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"bert", build_bert},
      {"bloom", build_decoder<parse_bloom>},
      {"falcon", build_decoder<parse_falcon>},
      {"gemma", build_decoder<parse_gemma>},
      {"gemma2", build_decoder<parse_gemma2>},
      {"gpt2", build_decoder<parse_gpt2>},
      {"gpt_neox", build_decoder<parse_gpt_neox>},
      {"gptj", build_decoder<parse_gptj>},
      {"llama", build_decoder<parse_llama>},
      {"mistral", build_decoder<parse_mistral>},
      {"mixtral", build_decoder<parse_mixtral>},
      {"mt5", build_t5},
      {"opt", build_decoder<parse_opt>},
      {"phi3", build_decoder<parse_phi3>},
      {"qwen2", build_decoder<parse_qwen2>},
      {"qwen3", build_decoder<parse_qwen3>},
      {"roberta", build_bert},
      {"smollm3", build_decoder<parse_smollm3>},
      {"t5", build_t5},
      {"umt5", build_t5},
      {"xlm-roberta", build_bert},
  };
  return kFamilies;
}

const Family& find_family(const std::string& model_type, const std::string& file) {
  std::vector<std::string> names;
  std::string listed;
  for (const auto& family : families()) {
    if (family.model_type == model_type) return family;
    names.push_back(family.model_type);
    listed += (listed.empty() ? "" : ", ") + family.model_type;
  }
  throw ConfigError(
      file + ": model_type '" + model_type + "' is not known (" + listed + ")" + did_you_mean(model_type, names),
      "model_type");
}

}  // namespace tessera::models
