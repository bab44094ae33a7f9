#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "tasks/seq2seq_data.h"

namespace tessera::tasks {
namespace {

/// The tokens where the label has one, as text without special tokens and outer spaces.
std::string text_at(const at::Tensor& ids, const at::Tensor& labels, std::int64_t row,
                    const text::Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens;
  const auto id = ids[row], label = labels[row];
  for (std::int64_t t = 0; t < label.size(0); ++t) {
    if (label[t].item<std::int64_t>() != -100) tokens.push_back(static_cast<std::int32_t>(id[t].item<std::int64_t>()));
  }
  std::string text = tokenizer.decode(tokens, /*skip_special_tokens=*/true);
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

data::SamplerOptions evaluation_sampler(const Seq2SeqData& data, const Seq2SeqOptions& options, int rank,
                                        int world_size) {
  return {.rows = static_cast<std::int64_t>(data.validation.rows.size()),
          .per_device_batch = options.per_device_eval_batch_size,
          .rank = rank,
          .world_size = world_size,
          .seed = 0,
          .shuffle = false,
          .last_batch = data::LastBatch::kPad};
}

}  // namespace

std::int64_t evaluation_batches(const Seq2SeqData& data, const Seq2SeqOptions& options, int world_size) {
  const auto all = data::EpochSampler(evaluation_sampler(data, options, 0, world_size)).batches_per_epoch();
  return options.max_eval_steps > 0 ? std::min(all, options.max_eval_steps) : all;
}

Evaluation evaluate(models::Model& model, const Seq2SeqData& data, const Seq2SeqOptions& options,
                    comm::Communicator& group, const std::function<void()>& on_batch) {
  const auto start = std::chrono::steady_clock::now();
  const c10::AutoGradMode no_grad(false);
  model.eval();
  data::EpochSampler rows(evaluation_sampler(data, options, group.rank(), group.size()));
  const auto batches = evaluation_batches(data, options, group.size());
  double loss_sum = 0, tokens = 0;
  nlohmann::json mine = nlohmann::json::array();  // [row, prediction, label]
  for (std::int64_t b = 0; b < batches; ++b) {
    const auto numbers = rows.next();
    const data::PairBatch batch = data::collate(data.validation, numbers, data.collate);
    models::ModelInput in;
    in.input_ids = batch.input_ids;
    in.attention_mask = batch.attention_mask;
    in.labels = batch.labels;
    in.loss_normalizer = 1.0;  // the sum
    in.want_logits = false;
    const models::ModelOutput out = model(std::move(in));
    if (batch.label_count > 0) loss_sum += out.loss.item<double>();
    tokens += static_cast<double>(batch.label_count);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == data::kPaddingRow) continue;
      const auto row = static_cast<std::int64_t>(i);
      mine.push_back({numbers[i], text_at(out.predictions, batch.labels, row, *data.tokenizer),
                      text_at(batch.labels, batch.labels, row, *data.tokenizer)});
    }
    if (on_batch) on_batch();
  }
  std::vector<std::tuple<std::int64_t, std::string, std::string>> all;
  for (const auto& bytes :
       group.all_gather_objects(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    for (const auto& row : nlohmann::json::parse(bytes)) all.emplace_back(row[0], row[1], row[2]);
  }
  std::sort(all.begin(), all.end());
  Evaluation e;
  std::int64_t right = 0;
  for (auto& [row, prediction, label] : all) {
    right += prediction == label;
    e.predictions.push_back(std::move(prediction));
    e.labels.push_back(std::move(label));
  }
  e.accuracy = all.empty() ? 0 : 100.0 * static_cast<double>(right) / static_cast<double>(all.size());
  e.loss = train::sum_over_ranks(group, loss_sum) / std::max(1.0, train::sum_over_ranks(group, tokens));
  e.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return e;
}

}  // namespace tessera::tasks
