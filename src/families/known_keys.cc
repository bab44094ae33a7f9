#include "families/known_keys.h"

#include <algorithm>

#include "base/json_text.h"
#include "families/quantization.h"

namespace tessera::families {
namespace {

struct RefusedKey {
  const char* key;
  const char* why;
};

/// Other values than null, false and an empty list or object.
constexpr RefusedKey kRefused[] = {
    {"pruned_heads", "models with pruned heads are not built"},
    {"tie_encoder_decoder", "encoder and decoder have weights of their own here"},
    {"use_bidirectional_attention", "is not supported: attention is causal here"},
};

bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

}  // namespace

const std::vector<UnusedKeys>& keys_without_effect() {
  static const std::vector<UnusedKeys> kKeys = {
      {"what a call returns or keeps in between",
       {"return_dict", "output_hidden_states", "output_attentions", "torchscript", "use_cache", "output_past"}},
      {"where the model comes from, and its code, which is never loaded",
       {"_name_or_path", "_model_name_or_path", "name_or_path", "transformers_version", "auto_map", "architectures",
        "model_type", "_commit_hash", "adapter_kwargs"}},
      {"how numbers are computed, not which",
       {"_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_flash_attn_2_enabled",
        "chunk_size_feed_forward", "use_bfloat16", "tf_legacy_loss", "reorder_and_upcast_attn",
        "gradient_checkpointing", "pretraining_tp", "slow_but_exact", "masked_softmax_fusion", "bias_dropout_fusion",
        "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "use_flash_attn"}},
      {"generation: read from generation_config.json, or from here where that is missing",
       {"max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "num_beam_groups",
        "diversity_penalty"}},
      {"the tokenizer's, or that of a task",
       {"tokenizer_class", "prefix", "task_specific_params", "finetuning_task", "bos_token_id", "eos_token_id",
        "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id", "language", "word_embed_type"}},
      {"of heads that are not built here",
       {"id2label", "label2id", "num_labels", "problem_type", "classifier_dropout", "classifier_bias", "summary_type",
        "summary_use_proj", "summary_activation", "summary_first_dropout", "summary_last_dropout", "qa_dropout",
        "seq_classif_dropout", "summary_proj_to_labels", "cross_attention_hidden_size", "add_cross_attention",
        "hidden_dropout_prob"}},
      {"of the training of the published weights, or of forms that one family has only one of",
       {"is_decoder",
        "is_encoder_decoder",
        "n_ctx",
        "seq_length",
        "n_positions",
        "rotary",
        "parallel_attn",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "max_window_layers",
        "sliding_window",
        "use_sliding_window",
        "layer_types",
        "original_max_position_embeddings",
        "hidden_activation",
        "hidden_act",
        "embd_pdrop",
        "gradient_checkpointing_policy",
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "tie_weights_",
        "attention_window",
        "embedding_size",
        "initializer_range",
        "tie_word_embeddings",
        "rope_theta",
        "partial_rotary_factor",
        "head_dim",
        "num_key_value_heads",
        "num_kv_heads",
        "torch_dtype",
        "dtype",
        "attention_dropout"}},
  };
  return kKeys;
}

bool is_without_effect(const std::string& key) {
  const auto& groups = keys_without_effect();
  return std::any_of(groups.begin(), groups.end(), [&](const UnusedKeys& group) {
    return std::find(group.keys.begin(), group.keys.end(), key) != group.keys.end();
  });
}

void refuse_other_models(const ConfigReader& in) {
  in.contains("quantization_config");
  (void)read_quantization(in.json(), in.file());
  for (const auto& [key, why] : kRefused) {
    if (in.contains(key) && !is_off(in.at(key)))
      throw ConfigError(in.file() + ": '" + key + "' " + json_text(in.at(key)) + ": " + why, key);
  }
}

std::string unknown_keys_note(const ConfigReader& in) {
  std::string unknown;
  for (const auto& [key, value] : in.json().items()) {
    if (in.asked_for(key) || is_without_effect(key)) continue;
    unknown += (unknown.empty() ? "'" : ", '") + key + "'";
  }
  for (const auto& key : unknown_quantization_keys(in.json())) unknown += (unknown.empty() ? "'" : ", '") + key + "'";
  return unknown.empty() ? "" : in.file() + ": not known to this program, and without effect: " + unknown;
}

}  // namespace tessera::families
