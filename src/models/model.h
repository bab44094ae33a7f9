#pragma once
// A model family: config.json -> modules whose parameter names are the names in the weight files.
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/nn/block.h"

namespace tessera::io {
class TensorSource;
}

namespace tessera::models {

/// Sequence-to-sequence batch. B batch, S source length, T target length. int64 ids; masks int64 0/1.
struct Seq2SeqInput {
  at::Tensor input_ids;          // [B, S]
  at::Tensor attention_mask;     // [B, S], undefined: all ones
  at::Tensor decoder_input_ids;  // [B, T], undefined: labels shifted right
  at::Tensor labels;             // [B, T], -100 ignored; undefined: no loss
  at::Tensor encoder_output;     // [B, S, D], undefined: computed from input_ids
  /// The loss is sum / loss_normalizer; 0: the number of labels != -100 in this batch (the mean).
  double loss_normalizer = 0;
  bool want_logits = true;       // false: the loss may be computed without storing them
  bool want_hidden = false;      // fills Seq2SeqOutput::hidden
};
struct Seq2SeqOutput {
  at::Tensor loss;            // scalar, undefined without labels
  at::Tensor logits;          // [B, T, V], undefined unless wanted
  at::Tensor predictions;     // [B, T] int64 argmax of the logits; defined when labels are given and the model is in eval mode
  at::Tensor encoder_output;  // [B, S, D]
  std::vector<at::Tensor> encoder_hidden, decoder_hidden;  // input of each block, last one after the final norm
};
void collect_tensors(Seq2SeqInput& in, std::vector<at::Tensor*>& out);
void collect_tensors(Seq2SeqOutput& o, std::vector<at::Tensor*>& out);

/// Everything that is known of a model from its config.json.
struct ModelConfig {
  std::string model_type;                          // "t5"
  std::string folder;                              // where it came from
  std::vector<std::string> no_split_classes;       // {"T5Block"}
  std::vector<std::string> default_lora_targets;   // {"q", "v"}
  std::int64_t vocab_size = 0, pad_token_id = 0, eos_token_id = 1, decoder_start_token_id = 0;
  std::string task_type;                           // PEFT's: "SEQ_2_SEQ_LM", "CAUSAL_LM", "SEQ_CLS"
  at::ScalarType stored_dtype = at::kFloat;        // "dtype"/"torch_dtype"
};

using Seq2SeqModel = nn::Block<Seq2SeqInput, Seq2SeqOutput>;

struct LoadedConfig;  // defined in models/registry.h

/// Builds the modules without memory for the parameters (tensor::make_detached, float32 unless dtype is given).
/// ConfigError for an unknown model_type: lists the known ones and the nearest.
std::shared_ptr<Seq2SeqModel> build_seq2seq(const std::string& folder, ModelConfig* config,
                                            std::optional<at::ScalarType> dtype = std::nullopt);

/// Unsharded: allocates every detached parameter and reads it from the source. DataError names what is missing, has another
/// shape, or (strict) is in the source but not in the model.
void load_weights(nn::HookedModule& model, const io::TensorSource& source);

/// Unsharded: allocates every detached parameter with the family's initialisation (transformers' _init_weights), seeded.
void init_weights(nn::HookedModule& model, std::uint64_t seed);

}  // namespace tessera::models
