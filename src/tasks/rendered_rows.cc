#include "tasks/rendered_rows.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using Ids = std::vector<std::int32_t>;

data::PreferenceForm form_of(const std::string& command) {
  if (command == "dpo") return data::PreferenceForm::kPairs;
  if (command == "kto") return data::PreferenceForm::kUnpaired;
  return command == "reward" ? data::PreferenceForm::kWhole : data::PreferenceForm::kOwnPrompt;
}

/// Runs of tokens that the loss counts, by where they begin and end.
std::vector<std::pair<std::size_t, std::size_t>> counted(const std::vector<std::int32_t>& labels) {
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == -100) continue;
    if (runs.empty() || runs.back().second != i) runs.emplace_back(i, i);
    runs.back().second = i + 1;
  }
  return runs;
}

Ids part(const Ids& ids, std::size_t begin, std::size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

const std::vector<std::string>& RenderedRows::commands() {
  static const std::vector<std::string> all = {"sft", "dpo", "orpo", "cpo", "kto", "reward"};
  return all;
}

std::string training_command(const chat::Dict& row, const std::string& text_field) {
  const auto has = [&](std::string_view key) { return row.find(key) != nullptr; };
  if (has("chosen") && has("rejected")) return "dpo";
  if (has("prompt") && has("completion")) return has("label") ? "kto" : "sft";
  return has("input_ids") || has(text_field) || (has("instruction") && has("output")) ? "sft" : "";
}

std::vector<chat::Dict> RenderedRows::answers(const std::string& command, const data::SourceRow& row) {
  return command == "sft" ? std::vector{sft(row)} : preference(command, row);
}

chat::Dict RenderedRows::sft(const data::SourceRow& row) {
  const auto kind = data::kind_of_row(*data::parse_row(row), options_.dataset_text_field, data::where(row));
  auto& tokenizer = sft_[kind];
  if (!tokenizer) tokenizer = std::make_unique<const data::SftTokenizer>(options_, tokenizer_, kind);
  return of_labels(tokenizer->tokenize(row));
}

chat::Dict RenderedRows::of_labels(const data::SftRow& row) const {
  const auto& ids = row.input_ids;
  const auto runs = counted(row.labels);
  chat::Dict answer;
  const bool to_the_end = runs.size() == 1 && runs[0].second == ids.size();
  if (to_the_end && runs[0].first > 0) {
    const auto prompt = part(ids, 0, runs[0].first);
    answer.set("prompt", text_of(prompt));
    answer.set("completion", text_behind(prompt, part(ids, runs[0].first, ids.size())));
    return answer;
  }
  answer.set("text", text_of(ids));
  if (to_the_end) return answer;
  std::vector<chat::Value> loss;
  for (const auto& [begin, end] : runs) loss.push_back(text_behind(part(ids, 0, begin), part(ids, begin, end)));
  answer.set("loss", chat::make_list(std::move(loss)));
  return answer;
}

std::vector<chat::Dict> RenderedRows::preference(const std::string& command, const data::SourceRow& row) {
  auto& tokenizer = preference_[command];
  if (!tokenizer) {
    data::PreferenceDataOptions options;
    options.form = form_of(command);
    options.chat_template = options_.chat_template;
    options.template_place = options_.template_place;
    options.max_length = 0;  // rows are shown whole
    tokenizer = std::make_unique<const data::PreferenceTokenizer>(options, tokenizer_);
  }
  std::vector<chat::Dict> answers;
  for (const auto& pair : tokenizer->tokenize(row)) {
    auto& answer = answers.emplace_back();
    if (command != "reward") answer.set("prompt", text_of(pair.prompt));
    answer.set(command == "kto" ? "completion" : "chosen", text_behind(pair.prompt, pair.chosen));
    if (command == "kto") {
      answer.set("label", pair.label);
      continue;
    }
    if (pair.rejected_prompt != pair.prompt) answer.set("rejected_prompt", text_of(pair.rejected_prompt));
    answer.set("rejected", text_behind(pair.rejected_prompt, pair.rejected));
    if (pair.has_margin) answer.set("margin", static_cast<double>(pair.margin));
  }
  return answers;
}

std::string RenderedRows::text_of(const Ids& ids) const {
  return tokenizer_->decode(ids, /*skip_special_tokens=*/false);
}

std::string RenderedRows::text_behind(const Ids& first, const Ids& ids) const {
  Ids all = first;
  all.insert(all.end(), ids.begin(), ids.end());
  const auto before = text_of(first), whole = text_of(all);
  return whole.starts_with(before) ? whole.substr(before.size()) : text_of(ids);
}

}  // namespace tessera::tasks
