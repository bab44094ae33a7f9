#include "models/generation.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "models/beam_search.h"
#include "models/logits_processors.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

class EvalMode {
 public:
  explicit EvalMode(Model& model) : model_(model), training_(model.is_training()) { model.eval(); }
  ~EvalMode() { model_.train(training_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  Model& model_;
  bool training_;
};

void check(const GenerationConfig& c) {
  const auto refuse = [](const char* key, const std::string& why) {
    throw ConfigError(std::string("generation: ") + key + " " + why, key);
  };
  if (c.num_beams < 1) refuse("num_beams", "must be at least 1");
  if (c.num_return_sequences < 1 || c.num_return_sequences > c.num_beams) {
    refuse("num_return_sequences", "must lie between 1 and num_beams (" + std::to_string(c.num_beams) + ")");
  }
  if (c.max_new_tokens < 0 || (c.max_new_tokens == 0 && c.max_length < 2))
    refuse("max_length", "leaves no token to generate");
  if (c.repetition_penalty <= 0) refuse("repetition_penalty", "must be positive");
}

GenerationOutput greedy(std::int64_t batch, std::int64_t max_length, const GenerationConfig& config,
                        const NextLogits& next, bool want_scores) {
  GenerationOutput out;
  out.sequences = at::full({batch, 1}, config.decoder_start_token_id, at::TensorOptions().dtype(at::kLong));
  std::vector<bool> done(static_cast<std::size_t>(batch), false);
  while (out.sequences.size(1) < max_length && std::find(done.begin(), done.end(), false) != done.end()) {
    auto scores = next(out.sequences.narrow(1, out.sequences.size(1) - 1, 1), {}).clone();
    process_scores(scores, out.sequences, config);
    auto tokens = at::argmax(scores, -1, /*keepdim=*/true);
    auto* p = tokens.mutable_data_ptr<std::int64_t>();
    for (std::int64_t r = 0; r < batch; ++r) {
      if (done[r]) p[r] = config.pad_token_id;
      const auto& eos = config.eos_token_ids;
      done[r] = done[r] || std::find(eos.begin(), eos.end(), p[r]) != eos.end();
    }
    out.sequences = at::cat({out.sequences, tokens}, 1);
    if (want_scores) out.scores.push_back(std::move(scores));
  }
  return out;
}

}  // namespace

GenerationOutput generate(Model& model, const at::Tensor& input_ids, const at::Tensor& attention_mask,
                          const GenerationConfig& config, bool want_scores) {
  check(config);
  const EvalMode eval(model);
  const at::NoGradGuard no_grad;
  const auto cache = model.make_cache();
  const std::int64_t batch = input_ids.size(0);
  const NextLogits next = [&](const at::Tensor& tokens, const at::Tensor& parents) {
    if (parents.defined()) cache->reorder(parents);
    ModelInput in;
    in.input_ids = input_ids;
    in.attention_mask = attention_mask;
    in.decoder_input_ids = tokens.contiguous();
    in.cache = cache;
    return model(in).logits.select(1, -1).to(at::kFloat).contiguous();
  };
  const std::int64_t max_length = config.max_new_tokens > 0 ? 1 + config.max_new_tokens : config.max_length;
  return config.num_beams > 1 ? beam_search(batch, max_length, config, next)
                              : greedy(batch, max_length, config, next, want_scores);
}

}  // namespace tessera::models
