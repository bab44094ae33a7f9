#pragma once
// A model family: config.json -> modules whose parameter names are the names in the weight files.
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "families/classifier.h"
#include "families/quantization.h"
#include "nn/ops/token_loss.h"
#include "tensor/rng.h"
#include "tessera/nn/block.h"
#include "tessera/nn/linear.h"

namespace tessera::io {
class TensorSource;
}

namespace tessera::models {

/// Keys and values of the tokens decoded so far (Model::make_cache); with an encoder also its output.
class Cache {
 public:
  virtual ~Cache() = default;
  /// Row i of the next call continues row `rows[i]` of the last one. rows: [R] int64. Rows may move only among those of
  /// one source.
  virtual void reorder(const at::Tensor& rows) = 0;
  /// Before the first call.
  virtual bool empty() const = 0;
  /// Whether so many tokens more change what the earlier ones are: all are then to be read again, into a new cache.
  virtual bool outgrown_by(std::int64_t /*tokens*/) const { return false; }
};

/// A batch for any family. B batch, S length, T target length (encoder-decoder only; T = S elsewhere). int64 ids; masks
/// int64 0/1. All on the device of the parameters, row_ids on any.
struct ModelInput {
  at::Tensor input_ids;       // [B, S]
  at::Tensor attention_mask;  // [B, S], undefined: all ones
  /// [B, S], undefined: 0, 1, 2, ... Without a mask, a position that does not follow its predecessor by one starts a
  /// new document, and attention stays inside documents (packed rows).
  at::Tensor position_ids;
  at::Tensor token_type_ids;     // [B, S], BERT only; undefined: zeros
  at::Tensor decoder_input_ids;  // [B, T], undefined: labels shifted right
  /// [B, T], -100 ignored; undefined: no loss. Causal models shift them (labels[t] is predicted at t - 1); sequence
  /// classification takes [B].
  at::Tensor labels;
  at::Tensor encoder_output;  // [B, S, D], undefined: computed from input_ids
  /// Keys and values in front of every row's, of an input adapter: [2 * layers, V, heads, head_dim] (PrefixSizes),
  /// those of layer i at 2 i and 2 i + 1, keys without rotary positions; the row's tokens are at the positions from V
  /// on.
  at::Tensor prefix;
  /// Decoding step by step: decoder_input_ids [R, T] are the tokens after those of earlier calls with this cache; R = B
  /// * k, k rows for each source one after another. The first call runs the encoder, later ones need no input_ids.
  /// Without grad only. Causal models: input_ids [R, T] are the tokens after those of earlier calls, attention_mask
  /// leaves out padding; positions count visible tokens unless position_ids says otherwise. Logits are those of the
  /// last token, [R, 1, V].
  std::shared_ptr<Cache> cache;
  /// The loss is sum / loss_normalizer; 0: the number of labels != -100 in this batch (the mean).
  double loss_normalizer = 0;
  double loss_scale = 1;  // what the loss will be multiplied by before backward (optim::GradScaler); only for precision
  /// What the rows are in the job, not in this batch, int64: [B], or [B, S] where several stand one behind the other in
  /// a row. What training draws (dropout, noise) for a token is then the same on any rank and in any batch; it starts
  /// at draw number first_draw. Undefined: the thread's stream goes on, keyed by the places in this batch.
  at::Tensor row_ids;
  std::uint64_t first_draw = 0;
  /// NEFTune (Jain et al. 2023), decoders only, for training steps: the token embeddings get uniform noise up to this /
  /// sqrt(length of the document * their size).
  double embedding_noise = 0;
  /// Experts: adds their balance to the loss (transformers' output_router_logits); unset: as config.json says.
  std::optional<bool> router_loss = {};
  /// Adds up a tensor over the ranks that share this global batch, in place; empty: there is one. Called where a loss
  /// is not a sum over tokens (the experts' balance), as often on every rank.
  std::function<void(at::Tensor)> sum_over_ranks = {};
  /// Decoders: rows of several kinds, each a batch of its own with everything above (but no cache, prefix or wanted
  /// outputs), for training: every layer computes one part after another, so units are gathered once for all of them
  /// and each part's numbers are those that it has alone. What computes may look at BatchPart::now(). All other members
  /// of this input are then unused. row_ids and labels are required.
  std::vector<ModelInput> parts = {};
  /// Of a part: begins the stream that it draws from (tensor/rng.h).
  std::uint64_t seed = 0;
  /// Causal models, with labels: ModelOutput::token_logps in place of a loss, and token_statistics if these are wanted.
  enum class TokenScores { kNone, kLogProbs, kWithStatistics } token_scores = TokenScores::kNone;
  bool want_logits = true;   // false: the loss may be computed without storing them
  bool want_hidden = false;  // fills ModelOutput::hidden
};
struct ModelOutput {
  at::Tensor loss;                      // scalar, undefined without labels; of an input in parts the sum of theirs
  std::vector<at::Tensor> part_losses;  // of an input in parts: the loss of each, detached
  at::Tensor logits;                    // [B, T, V], undefined unless wanted
  at::Tensor
      predictions;  // [B, T] int64 argmax of the logits; defined when labels are given and the model is in eval mode
  /// At [:, t]: of labels[:, t + 1], 0 where that is -100. [B, S] float32, differentiable; [B, S, kTokenStatistics],
  /// not (nn/ops/token_log_probs.h).
  at::Tensor token_logps, token_statistics;
  at::Tensor encoder_output;  // [B, S, D], zeros where the mask is 0; undefined in training unless want_hidden
  std::vector<at::Tensor> encoder_hidden, decoder_hidden;  // input of each block, last one after the final norm
  std::vector<at::Tensor> hidden;  // the same of a model with one stack, [B, S, D]; zeros at padding
};
void collect_tensors(ModelInput& in, std::vector<at::Tensor*>& out);
void collect_tensors(ModelOutput& o, std::vector<at::Tensor*>& out);

enum class ModelKind { kSeq2Seq, kCausal, kMaskedLm, kSequenceClassification };

/// Everything that is known of a model from its config.json.
struct ModelConfig {
  std::string model_type;                         // "t5"
  std::string folder;                             // where it came from
  std::vector<std::string> no_split_classes;      // {"T5Block"}
  std::vector<std::string> default_lora_targets;  // {"q", "v"}
  std::int64_t vocab_size = 0, pad_token_id = 0, eos_token_id = 1, decoder_start_token_id = 0;
  std::string task_type;                     // PEFT's: "SEQ_2_SEQ_LM", "CAUSAL_LM", "SEQ_CLS"
  at::ScalarType stored_dtype = at::kFloat;  // "dtype"/"torch_dtype"
  ModelKind kind = ModelKind::kSeq2Seq;
  std::int64_t max_positions = 0;            // longest row that the position table carries; 0: any
  std::int64_t known_positions = 0;          // of rotary positions: longest row that the model was made for; 0: any
  std::string output_embedding = "lm_head";  // module name of the output head, tied or not
  std::optional<families::Quantization> quantization;  // of config.json: its linear layers are packed
  std::string note;                                    // about keys of config.json that nobody here knows; empty: none
};

/// An adapter of the whole model (virtual tokens, for example): it changes what the model reads and returns.
class InputAdapter {
 public:
  virtual ~InputAdapter() = default;
  virtual ModelInput prepare(ModelInput in) const = 0;
  virtual ModelOutput finish(ModelOutput out) const = 0;
  /// How many tokens it puts in front of every row.
  virtual std::int64_t virtual_tokens() const = 0;
};

/// Of a prefix that the model takes; no layers: it takes none.
struct PrefixSizes {
  std::int64_t layers = 0, heads = 0, head_dim = 0;
};

class Model : public nn::Block<ModelInput, ModelOutput> {
 public:
  virtual PrefixSizes prefix_sizes() const { return {}; }
  void set_input_adapter(std::shared_ptr<const InputAdapter> adapter) { input_adapter_ = std::move(adapter); }
  const InputAdapter* input_adapter() const { return input_adapter_.get(); }
  virtual ModelKind kind() const = 0;
  virtual std::shared_ptr<Cache> make_cache() const = 0;
  /// The family's initial values (transformers' _init_weights) for one parameter; `key` decides every number.
  virtual void init_parameter(const std::string& name, at::Tensor values, tensor::RandomKey key) const = 0;
  /// Gives a tied output head a matrix of its own, ModelConfig::output_embedding, with the embedding's values (which
  /// NamesInFiles finds under the embedding's name). False: nothing was changed.
  virtual bool untie_head() { return false; }
  /// What a token costs a language model from now on, in training and in evaluations.
  void set_token_loss(const nn::TokenLoss& loss) { token_loss_ = loss; }

 protected:
  ModelOutput forward_impl(ModelInput in) final {
    if (!input_adapter_ || nn::AdaptersOff::active()) return compute(std::move(in));
    return input_adapter_->finish(compute(input_adapter_->prepare(std::move(in))));
  }
  /// The family's forward.
  virtual ModelOutput compute(ModelInput in) = 0;
  const nn::TokenLoss& token_loss() const { return token_loss_; }

 private:
  nn::TokenLoss token_loss_;
  std::shared_ptr<const InputAdapter> input_adapter_;
};

/// A head [num, dim] without bias that starts as the table: a copy of it if it has memory, else without memory too.
std::shared_ptr<nn::Linear> make_untied_head(const at::Tensor& table);

/// A head of classification that the folder may not have, or has for other labels.
struct ClassifierHead {
  families::ClassifierConfig config;
  std::int64_t pad_token_id = -1;  // what pads rows, whatever config.json says; -1: that
};

struct BuildOptions {
  std::optional<at::ScalarType> dtype = {};  // of the parameters; unset: float32
  std::int64_t min_vocab_size = 0;           // the token tables have at least so many rows
  /// transformers' argument of this name; empty: config.json's value. Only "eager" and only where upstream's code for
  /// it computes something else (Falcon's linear biases) makes a difference.
  std::string attn_implementation = {};
  std::optional<ClassifierHead> classifier = {};  // builds the family's sequence classifier
  bool pooler = false;                            // BertModel's and RobertaModel's, with which no head here computes
};

/// Builds the modules without memory for the parameters (tensor::make_detached). ConfigError for an unknown model_type:
/// lists the known ones and the nearest.
std::shared_ptr<Model> build_model(const std::string& folder, ModelConfig* config, const BuildOptions& options = {});

/// Unsharded: allocates every detached parameter and reads it from the source. DataError names what is missing, has
/// another shape, or is in the source but not in the model. Adapters are left as they are.
void load_weights(nn::HookedModule& model, const io::TensorSource& source);
/// Throws what load_weights() would, without reading a value.
void check_weights(const nn::HookedModule& model, const io::TensorSource& source);
/// Parameters that the source has no tensor for, but for those of adapters.
std::vector<std::string> missing_weights(const nn::HookedModule& model, const io::TensorSource& source);
/// Whether something is missing, and all of it is of the head.
bool lacks_head_alone(const nn::HookedModule& model, const io::TensorSource& source);
/// Tensors of the source that are no parameter's, but for those that some versions write and nobody needs.
std::vector<std::string> unused_weights(const nn::HookedModule& model, const io::TensorSource& source);
/// "a, b, c, d, e and 3 more".
std::string few_of(const std::vector<std::string>& names);

/// Unsharded: allocates every detached parameter with the family's initialisation. Values depend on (seed, name,
/// position) only.
void init_weights(Model& model, std::uint64_t seed);

}  // namespace tessera::models
