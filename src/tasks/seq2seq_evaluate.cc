#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "tasks/seq2seq_data.h"

namespace tessera::tasks {
namespace {

/// The tokens where the label has one, as text without special tokens and outer spaces.
std::string text_at(const at::Tensor& ids, const at::Tensor& labels, std::int64_t row,
                    const text::Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens;
  const auto id = ids[row].cpu(), label = labels[row];
  for (std::int64_t t = 0; t < label.size(0); ++t) {
    if (label[t].item<std::int64_t>() != -100) tokens.push_back(static_cast<std::int32_t>(id[t].item<std::int64_t>()));
  }
  std::string text = tokenizer.decode(tokens, /*skip_special_tokens=*/true);
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

Evaluation evaluate(models::Model& model, const Seq2SeqData& data, const EvaluationOptions& options,
                    comm::Communicator& group, const std::function<void()>& on_batch) {
  const auto start = std::chrono::steady_clock::now();
  nlohmann::json mine = nlohmann::json::array();  // [row, prediction, label]
  const auto read_texts = [&](const std::vector<std::int64_t>& numbers, const data::PairBatch& batch,
                              const models::ModelOutput& out) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      mine.push_back({numbers[i], text_at(out.predictions, batch.labels, row, *data.tokenizer),
                      text_at(batch.labels, batch.labels, row, *data.tokenizer)});
    }
    on_batch();
  };
  Evaluation e;
  e.loss = evaluate_pairs(model, data.validation, data.collate, options, group, read_texts);
  std::vector<std::tuple<std::int64_t, std::string, std::string>> all;
  for (const auto& bytes : group.all_gather_objects(json_text(mine))) {
    for (const auto& row : nlohmann::json::parse(bytes)) all.emplace_back(row[0], row[1], row[2]);
  }
  std::sort(all.begin(), all.end());
  std::int64_t right = 0;
  for (auto& [row, prediction, label] : all) {
    right += prediction == label;
    e.predictions.push_back(std::move(prediction));
    e.labels.push_back(std::move(label));
  }
  e.accuracy = all.empty() ? 0 : 100.0 * static_cast<double>(right) / static_cast<double>(all.size());
  e.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return e;
}

}  // namespace tessera::tasks
