#include "tasks/text_evaluation.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/rounded.h"
#include "models/generation.h"
#include "tasks/bleu.h"
#include "tasks/sentences.h"

namespace tessera::tasks {
namespace {

using Ids = std::vector<std::int32_t>;

/// Without special tokens and outer white space.
std::string text_of(const Ids& ids, const text::Tokenizer& tokenizer) {
  constexpr const char* kSpace = " \t\n\r\f\v";
  const std::string text = tokenizer.decode(ids, /*skip_special_tokens=*/true);
  const auto begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// The tokens of a row where the label has one.
Ids ids_at(const at::Tensor& ids, const at::Tensor& labels, std::int64_t row) {
  Ids tokens;
  const auto id = ids[row].cpu(), label = labels[row];
  for (std::int64_t t = 0; t < label.size(0); ++t) {
    if (label[t].item<std::int64_t>() != -100) tokens.push_back(static_cast<std::int32_t>(id[t].item<std::int64_t>()));
  }
  return tokens;
}

/// To the first that ends the text; without padding, with which T5's texts begin.
Ids generated_ids(const at::Tensor& sequences, std::int64_t row, const models::GenerationConfig& settings) {
  Ids tokens;
  const auto& ends = settings.eos_token_ids;
  const auto ids = sequences[row].contiguous();
  const auto* p = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t t = 0; t < ids.numel(); ++t) {
    if (p[t] != settings.pad_token_id) tokens.push_back(static_cast<std::int32_t>(p[t]));
    if (t > 0 && std::find(ends.begin(), ends.end(), p[t]) != ends.end()) break;
  }
  return tokens;
}

struct Row {
  std::int64_t number = 0, generated = 0;
  std::string prediction, label;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Row, number, generated, prediction, label)
};

/// Of this rank's batch, while other ranks generate from theirs.
at::Tensor generate_beside_others(models::Model& model, const data::PairBatch& batch, bool is_empty,
                                  const models::GenerationConfig& settings, comm::Communicator& group) {
  const auto any_goes_on = [&](bool mine) {
    auto going = at::full({1}, mine && !is_empty ? 1 : 0, at::kInt);
    group.all_reduce(going, comm::ReduceOp::kMax)->wait();
    return going.item<int>() > 0;
  };
  auto mask = batch.attention_mask;
  if (is_empty) mask.fill_(1);
  return models::generate(model, batch.input_ids, mask, settings, false, {}, any_goes_on).sequences;
}

/// rougeLsum compares lines.
std::vector<std::string> by_sentences(std::vector<std::string> texts) {
  for (auto& text : texts) text = sentence_a_line(text);
  return texts;
}

void measure(TextMetric metric, TextEvaluation& e) {
  if (metric == TextMetric::kBleu)
    e.bleu = bleu(e.predictions, e.labels);
  else
    e.rouge = rouge(by_sentences(e.predictions), by_sentences(e.labels));
}

}  // namespace

void add_generate_flags(config::OptionTable& table, GenerateFlags& flags, const char* group) {
  table.add(&flags.predict_with_generate, {"--predict_with_generate"},
            "evaluations generate texts and measure ROUGE or, of translations, BLEU; false: the likeliest token behind "
            "each of the label's own",
            group);
  const config::Need generates{"--predict_with_generate", {"true"}};
  table
      .add(&flags.max_length, {"--generation_max_length"},
           "tokens of a generated text, with the one that it begins from; none: as long as a label may be", group)
      .only_with({generates});
  table
      .add(&flags.num_beams, {"--generation_num_beams", "--num_beams"},
           "beams of the search; none: as the model's generation_config.json says", group)
      .only_with({generates});
}

void check_generate_flags(const GenerateFlags& flags, config::Problems& problems) {
  problems.require(flags.max_length.value_or(2) >= 2, "--generation_max_length leaves no token to generate: at least 2",
                   "generation_max_length");
  problems.require(flags.num_beams.value_or(1) >= 1, "--generation_num_beams must be at least 1",
                   "generation_num_beams");
}

std::optional<TextGeneration> evaluation_generates(const GenerateFlags& flags, const std::string& folder,
                                                   const models::ModelConfig& model, std::int64_t max_length) {
  if (!flags.predict_with_generate) return {};
  auto settings = models::read_generation_config(folder, model);
  settings.max_new_tokens = 0;
  settings.max_length = flags.max_length.value_or(max_length);
  settings.num_beams = flags.num_beams.value_or(settings.num_beams);
  settings.num_return_sequences = 1;
  settings.do_sample = false;
  return TextGeneration{std::move(settings), flags.metric};
}

train::Metrics TextEvaluation::metrics(const std::string& prefix) const {
  const auto percent = [](double part) { return rounded(100 * part, 4); };
  train::Metrics all = {{"loss", loss}, {"accuracy", accuracy / 100}};
  if (rouge) {
    all.insert(all.end(), {{"rouge1", percent(rouge->rouge1)},
                           {"rouge2", percent(rouge->rouge2)},
                           {"rougeL", percent(rouge->rougeL)},
                           {"rougeLsum", percent(rouge->rougeLsum)},
                           {"gen_len", generated_tokens}});
  } else if (bleu) {
    all.insert(all.end(), {{"bleu", rounded(*bleu, 4)}, {"gen_len", rounded(generated_tokens, 4)}});
  }
  for (auto& [name, value] : all) name = prefix + "_" + name;
  return timed_metrics(std::move(all), seconds, std::ssize(labels), batches, prefix);
}

TextEvaluation evaluate_texts(models::Model& model, const PairSet& set, const text::Tokenizer& tokenizer,
                              const EvaluationOptions& options, const std::optional<TextGeneration>& generation,
                              comm::Communicator& group, const std::function<void()>& on_batch) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Row> mine, all;
  const auto read_texts = [&](const std::vector<std::int64_t>& numbers, const data::PairBatch& batch,
                              const models::ModelOutput& out) {
    const auto generated =
        generation ? generate_beside_others(model, batch, numbers.empty(), generation->settings, group) : at::Tensor();
    for (std::int64_t i = 0; i < std::ssize(numbers); ++i) {
      const auto ids =
          generation ? generated_ids(generated, i, generation->settings) : ids_at(out.predictions, batch.labels, i);
      mine.push_back({numbers[static_cast<std::size_t>(i)], std::ssize(ids), text_of(ids, tokenizer),
                      text_of(ids_at(batch.labels, batch.labels, i), tokenizer)});
    }
    on_batch();
  };
  TextEvaluation e;
  e.loss = evaluate_pairs(model, set.rows, set.collate, options, group, read_texts);
  e.batches = evaluation_batches(set.rows, options, group.size());
  for (const auto& bytes : group.all_gather_objects(json_text(nlohmann::json(mine)))) {
    const auto rows = nlohmann::json::parse(bytes).get<std::vector<Row>>();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  std::sort(all.begin(), all.end(), [](const Row& a, const Row& b) { return a.number < b.number; });
  std::int64_t right = 0, generated = 0;
  for (auto& row : all) {
    right += row.prediction == row.label;
    generated += row.generated;
    e.predictions.push_back(std::move(row.prediction));
    e.labels.push_back(std::move(row.label));
  }
  const double rows = std::max(1.0, static_cast<double>(all.size()));
  e.accuracy = 100.0 * static_cast<double>(right) / rows;
  e.generated_tokens = static_cast<double>(generated) / rows;
  if (generation) measure(generation->metric, e);
  e.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return e;
}

std::vector<std::string> text_metrics(const GenerateFlags& flags) {
  TextEvaluation measured;
  measured.seconds = 1;
  if (flags.predict_with_generate) measure(flags.metric, measured);
  std::vector<std::string> names;
  for (const auto& [name, value] : measured.metrics("eval")) names.push_back(name);
  return names;
}

}  // namespace tessera::tasks
