#include "models/generation.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "models/beam_search.h"
#include "models/logits_processors.h"
#include "tensor/device.h"
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
  const auto in_unit = [](double v) { return v >= 0 && v <= 1; };
  if (c.num_beams < 1) refuse("num_beams", "must be at least 1");
  if (c.do_sample && c.num_beams > 1) refuse("num_beams", "must be 1 with do_sample");
  if (c.num_return_sequences < 1 || (!c.do_sample && c.num_return_sequences > c.num_beams)) {
    refuse("num_return_sequences", "must lie between 1 and num_beams (" + std::to_string(c.num_beams) + ")");
  }
  if (c.max_new_tokens < 0 || (c.max_new_tokens == 0 && (c.max_length < 0 || c.max_length == 1)))
    refuse("max_length", "leaves no token to generate");
  if (c.repetition_penalty <= 0) refuse("repetition_penalty", "must be positive");
  if (!c.do_sample) return;
  if (!(c.temperature > 0)) refuse("temperature", "must be positive; use do_sample false for greedy search");
  if (c.top_k < 0) refuse("top_k", "must not be negative (0: all tokens)");
  if (!in_unit(c.top_p)) refuse("top_p", "must lie between 0 and 1");
  if (!in_unit(c.min_p.value_or(0))) refuse("min_p", "must lie between 0 and 1");
  if (c.min_tokens_to_keep < 1) refuse("min_tokens_to_keep", "must be at least 1");
  if (!(c.typical_p > 0)) refuse("typical_p", "must be positive");
  if (!in_unit(c.epsilon_cutoff)) refuse("epsilon_cutoff", "must lie between 0 and 1");
  if (!in_unit(c.eta_cutoff)) refuse("eta_cutoff", "must lie between 0 and 1");
}

/// One token for each row of scores [R, V], by its probability. Rank and thread do not matter: the draw depends on the
/// seed, the step and the row.
at::Tensor draw(const at::Tensor& scores, std::uint64_t seed, std::int64_t step) {
  const std::int64_t rows = scores.size(0), n = scores.size(1);
  const auto key = tensor::named_key(seed, "generate step " + std::to_string(step));
  auto tokens = at::empty({rows, 1}, at::TensorOptions().dtype(at::kLong));
  const float* data = scores.const_data_ptr<float>();
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = data + r * n;
    const double top = *std::max_element(row, row + n);
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += std::exp(row[i] - top);
    const double threshold = total * (tensor::random_bits(key, static_cast<std::uint32_t>(r)) + 0.5) * 0x1p-32;
    std::int64_t token = 0;
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      if (std::isinf(row[i])) continue;
      token = i;
      if ((sum += std::exp(row[i] - top)) > threshold) break;
    }
    tokens.mutable_data_ptr<std::int64_t>()[r] = token;
  }
  return tokens;
}

/// Greedy search and sampling from prompts [R, P].
GenerationOutput one_token_each(const at::Tensor& prompts, std::int64_t max_length, const GenerationConfig& config,
                                const NextLogits& next, bool want_scores, const TokenCallback& on_tokens,
                                const AnyGoesOn& any_goes_on) {
  GenerationOutput out;
  out.sequences = prompts;
  const std::int64_t rows = prompts.size(0), prompt_length = prompts.size(1);
  std::vector<bool> done(static_cast<std::size_t>(rows), false);
  bool goes_on = true;
  while (out.sequences.size(1) < max_length && goes_on) {
    const std::int64_t length = out.sequences.size(1);
    auto scores = next(out.sequences.narrow(1, length - 1, 1), {}).clone();
    process_scores(scores, {out.sequences, prompt_length, max_length}, config);
    if (config.do_sample) warp_scores(scores, config);
    auto tokens =
        config.do_sample ? draw(scores, config.seed, length - prompt_length) : at::argmax(scores, -1, /*keepdim=*/true);
    auto* p = tokens.mutable_data_ptr<std::int64_t>();
    for (std::int64_t r = 0; r < rows; ++r) {
      if (done[r]) p[r] = config.pad_token_id;
      const auto& eos = config.eos_token_ids;
      done[r] = done[r] || std::find(eos.begin(), eos.end(), p[r]) != eos.end();
    }
    out.sequences = at::cat({out.sequences, tokens}, 1);
    if (want_scores) out.scores.push_back(std::move(scores));
    if (on_tokens) on_tokens(tokens.flatten());
    goes_on = std::find(done.begin(), done.end(), false) != done.end();
    if (any_goes_on) goes_on = any_goes_on(goes_on);
  }
  return out;
}

/// The indices 0 0 .. 1 1 ..., `each` times every row.
at::Tensor repeated_rows(std::int64_t rows, std::int64_t each) {
  return at::arange(rows, at::TensorOptions().dtype(at::kLong)).repeat_interleave(each);
}

/// [R, V] float32 on the CPU, of the last token.
at::Tensor last_logits(Model& model, const ModelInput& in) {
  return tensor::on_host(model(in).logits.select(1, -1).to(at::kFloat)).contiguous();
}

NextLogits continue_source(Model& model, const at::Tensor& input_ids, const at::Tensor& mask) {
  return [&model, input_ids, mask, cache = model.make_cache()](const at::Tensor& tokens, const at::Tensor& parents) {
    if (parents.defined()) cache->reorder(parents);
    ModelInput in;
    in.input_ids = input_ids;
    in.attention_mask = mask;
    in.decoder_input_ids = tensor::beside(tokens.contiguous(), input_ids);
    in.cache = cache;
    return last_logits(model, in);
  };
}

at::Tensor rows_of(const at::Tensor& t, const at::Tensor& rows) {
  return t.defined() && rows.defined() ? t.index_select(0, tensor::beside(rows, t)) : t;
}

/// The prompts are read once each, however many rows continue them; again where the rows outgrow the cache.
NextLogits continue_prompts(Model& model, const at::Tensor& prompts, const at::Tensor& prompt_mask, std::int64_t each) {
  return [&model, each, cache = model.make_cache(), ids = prompts, mask = prompt_mask](
             const at::Tensor& tokens, const at::Tensor& parents) mutable {
    ModelInput in;
    if (!cache->empty()) {
      if (parents.defined()) cache->reorder(parents);
      in.input_ids = tensor::beside(tokens.contiguous(), ids);
      ids = at::cat({rows_of(ids, parents), in.input_ids}, 1);
      if (mask.defined()) mask = at::cat({rows_of(mask, parents), at::ones_like(in.input_ids)}, 1);
      if (!cache->outgrown_by(tokens.size(1))) {
        in.cache = cache;
        return last_logits(model, in);
      }
      cache = model.make_cache();
      each = 1;
    }
    in.cache = cache;
    in.input_ids = ids;
    in.attention_mask = mask;
    const auto logits = last_logits(model, in);
    if (each == 1) return logits;
    const auto rows = repeated_rows(ids.size(0), each);
    cache->reorder(rows);
    ids = rows_of(ids, rows);
    mask = rows_of(mask, rows);
    return logits.index_select(0, rows);
  };
}

/// The same with scores that are finite; `each` rows of them belong to one of the input.
NextLogits finite(NextLogits next, std::int64_t each) {
  return [next = std::move(next), each, step = std::int64_t{0}](const at::Tensor& tokens,
                                                                const at::Tensor& parents) mutable {
    at::Tensor logits = next(tokens, parents);
    ++step;
    const at::Tensor rows = logits.isfinite().all(1);
    const bool* good = rows.const_data_ptr<bool>();
    for (std::int64_t r = 0; r < rows.size(0); ++r)
      if (!good[r]) throw NonFiniteScores(r / each, step);
    return logits;
  };
}

void check_left_padding(const at::Tensor& mask) {
  if (mask.defined() && mask.select(1, mask.size(1) - 1).eq(0).any().item<bool>())
    throw DataError("prompts must be padded on the left: the last column of attention_mask has a 0");
}

/// [rows, 1]: what the decoder of each row begins with.
at::Tensor first_tokens(const std::vector<std::int64_t>& ids, std::int64_t rows) {
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count != 1 && count != rows) {
    throw ConfigError("generation: decoder_start_token_id names " + std::to_string(count) + " tokens for a batch of " +
                          std::to_string(rows) + " rows; name one token, or one for each row",
                      "decoder_start_token_id");
  }
  return at::tensor(ids, at::TensorOptions().dtype(at::kLong)).unsqueeze(1).expand({rows, 1}).contiguous();
}

}  // namespace

NonFiniteScores::NonFiniteScores(std::int64_t row, std::int64_t step)
    : DataError("generation: the model's scores for new token " + std::to_string(step) + " of prompt " +
                std::to_string(row + 1) + " are not finite (NaN or infinite). Weights hold such values, or the " +
                "precision is too low for them: try float32 or bfloat16 instead of float16"),
      row(row),
      step(step) {}

GenerationOutput generate(Model& model, const at::Tensor& input_ids, const at::Tensor& attention_mask,
                          const GenerationConfig& config, bool want_scores, const TokenCallback& on_tokens,
                          const AnyGoesOn& any_goes_on) {
  check(config);
  const EvalMode eval(model);
  const at::NoGradGuard no_grad;
  const bool causal = model.kind() == ModelKind::kCausal;
  if (!causal && model.kind() != ModelKind::kSeq2Seq)
    throw ConfigError("generation: this model does not generate text", "model_type");
  const std::int64_t batch = input_ids.size(0);
  if (causal) check_left_padding(attention_mask);
  auto prompts = causal ? tensor::on_host(input_ids) : first_tokens(config.decoder_start_token_ids, batch);
  const std::int64_t each = config.do_sample ? config.num_return_sequences : config.num_beams;
  const auto readable = input_ids.clamp_min(0);
  const auto next = finite(causal ? continue_prompts(model, readable, attention_mask, each)
                                  : continue_source(model, readable, attention_mask),
                           each);
  const std::int64_t max_length = most_tokens(config, prompts.size(1));
  if (max_length <= prompts.size(1)) {
    const auto given = config.max_length > 0 ? config.max_length : max_length;
    throw ConfigError("generation: max_length " + std::to_string(given) + " leaves no room after a prompt of " +
                          std::to_string(prompts.size(1)) + " tokens; set max_new_tokens",
                      "max_length");
  }
  if (config.num_beams > 1) return beam_search(prompts, max_length, config, next, any_goes_on);
  if (each > 1) prompts = prompts.index_select(0, repeated_rows(batch, each));
  return one_token_each(prompts, max_length, config, next, want_scores, on_tokens, any_goes_on);
}

}  // namespace tessera::models
