#include "data/preference_tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "chat/jinja/json.h"
#include "chat/jinja/runtime.h"
#include "data/chat_rows.h"
#include "data/preference_prompt.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using chat::Value;
using IdList = std::vector<std::int32_t>;

const Value& value_at(const chat::Dict& object, std::string_view key, const SourceRow& row) {
  const Value* value = object.find(key);
  if (value != nullptr) return *value;
  std::vector<std::string> columns;
  for (const auto& [name, unused] : object.items())
    if (name.is_text()) columns.push_back(name.text());
  fail(row, fmt::format("key \"{}\" is missing; preference data have \"chosen\" and \"rejected\" (and \"prompt\"), "
                        "for tessera kto also \"prompt\", \"completion\" and \"label\"; found {}",
                        key, fmt::join(columns, ", ")));
}

/// A text, or a checked list of messages (JSON of one, in tables, which have texts only).
Value text_or_messages(const Value& value, const std::string& key, const SourceRow& row) {
  if (!value.is_text() && !value.is<chat::ListPtr>())
    fail(row, fmt::format("key \"{}\" must be a text or a list of messages, found {}", key, called(value, row)));
  if (!value.is_text()) return check_messages(value, key, row);
  const auto& text = value.text();
  const bool is_list = row.columns != nullptr && text.starts_with("[{") && text.ends_with("}]");
  return is_list ? check_messages(value, key, row) : value;
}

bool is_empty_text(const Value& value) {
  return value.is_text() && value.text().empty();
}

std::size_t common_start(const IdList& a, const IdList& b) {
  const auto shorter = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + shorter, b.begin()).first - a.begin());
}

IdList from(const IdList& ids, std::size_t begin) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end()};
}

void cut_to(IdList& ids, std::size_t size) {
  if (ids.size() > size) ids.resize(size);
}

bool label_at(const chat::Dict& object, const SourceRow& row) {
  const Value& label = value_at(object, "label", row);
  if (label.is_text()) {  // of a CSV file
    if (label.text() == "true" || label.text() == "True" || label.text() == "1") return true;
    if (label.text() == "false" || label.text() == "False" || label.text() == "0") return false;
  } else if (label.is<bool>() || label.integer()) {
    return chat::truth(label);
  }
  fail(row, fmt::format("key \"label\" must be true (desirable) or false, found {}", called(label, row)));
}

/// A number, or the text of one, as tables have it.
std::optional<double> number_in(const Value& value) {
  if (!value.is_text()) return value.number();
  try {
    return chat::parse_json(value.text()).number();
  } catch (const chat::TemplateError&) {
    return std::nullopt;
  }
}

/// Whether rendering a prompt asks for an answer; a last message of the assistant is gone on with.
bool asks(const Value& prompt, const SourceRow& row) {
  const auto messages = chat::iterate(prompt);
  const auto role =
      messages.empty() ? Value(std::string("user")) : chat::get_item(messages.back(), Value(std::string("role")));
  if (role.text() == "user" || role.text() == "tool") return true;
  if (role.text() == "assistant") return false;
  fail(row, fmt::format("the prompt ends with a message of '{}'; expected user, tool or assistant", role.text()));
}

}  // namespace

PreferenceTokenizer::PreferenceTokenizer(const PreferenceDataOptions& options,
                                         std::shared_ptr<const text::Tokenizer> tokenizer)
    : options_(options),
      tokenizer_(std::move(tokenizer)),
      renderer_(options.chat_template, options.template_place, *tokenizer_),
      eos_(tokenizer_->special_tokens().eos) {}

Value PreferenceTokenizer::with_eos(const Value& value) const {
  if (!value.is_text() || value.text().ends_with(eos_)) return value;
  return Value(value.text() + eos_);
}

PreferenceTokenizer::Pieces PreferenceTokenizer::pair_of(const chat::Dict& object, const SourceRow& row) const {
  Pieces out;
  out.object = &object;
  out.row = &row;
  out.chosen = text_or_messages(value_at(object, "chosen", row), "chosen", row);
  out.rejected = text_or_messages(value_at(object, "rejected", row), "rejected", row);
  out.conversational = !out.chosen.is_text();
  if (out.rejected.is_text() == out.conversational)
    fail(row, "\"chosen\" and \"rejected\" must both be texts or both be lists of messages");
  const Value* prompt = object.find(std::string_view("prompt"));
  if (prompt != nullptr && !prompt->is_none()) {
    const auto value = text_or_messages(*prompt, "prompt", row);
    // Some data repeat the first question as a text beside whole conversations; it is in these already.
    out.has_prompt = value.is_text() != out.conversational;
    if (out.has_prompt) out.prompt = value;
    if (!out.has_prompt && !out.conversational)
      fail(row, "\"prompt\" is a list of messages, but \"chosen\" and \"rejected\" are texts");
  }
  if (!out.has_prompt && options_.form != PreferenceForm::kWhole) {
    const auto parts = extract_prompt(out.chosen, out.rejected, row);
    out.prompt = parts.prompt, out.chosen = parts.chosen, out.rejected = parts.rejected;
    out.has_prompt = true;
  }
  return out;
}

PreferenceTokenizer::Ids PreferenceTokenizer::ids_of(const Value& value, const Pieces& in,
                                                     std::optional<bool> add_generation_prompt) const {
  if (value.is_text()) return tokenizer_->encode(value.text()).ids;
  return tokenizer_->encode(renderer_.render(value, *in.object, *in.row, add_generation_prompt).text, false).ids;
}

PreferenceRow PreferenceTokenizer::pair(const Pieces& in) const {
  const auto prompt = ids_of(in.prompt, in, true);
  const auto chosen = ids_of(joined(in.prompt, with_eos(in.chosen)), in);
  const auto rejected = ids_of(joined(in.prompt, with_eos(in.rejected)), in);
  // The completions begin where the tokens part, which need not be behind the prompt: tokens merge across the border.
  const auto border = std::min(common_start(prompt, chosen), common_start(prompt, rejected));
  PreferenceRow out;
  out.has_prompt = !is_empty_text(in.prompt);
  out.prompt = {prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(border)};
  out.rejected_prompt = out.prompt;
  out.chosen = from(chosen, border);
  out.rejected = from(rejected, border);
  return out;
}

PreferenceRow PreferenceTokenizer::unpaired(const Pieces& in, const Value& completion, bool label) const {
  const auto prompt = ids_of(in.prompt, in, true);
  const auto all = ids_of(joined(in.prompt, with_eos(completion)), in);
  const auto border = common_start(prompt, all);
  PreferenceRow out;
  out.has_prompt = !is_empty_text(in.prompt);
  out.prompt = {prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(border)};
  out.chosen = from(all, border);
  out.label = label;
  return out;
}

PreferenceRow PreferenceTokenizer::whole(const Pieces& in) const {
  PreferenceRow out;
  const auto side = [&](const Value& value) {
    const auto ended = in.conversational ? value : with_eos(value);
    return ids_of(in.has_prompt ? joined(in.prompt, ended) : ended, in);
  };
  out.chosen = side(in.chosen);
  out.rejected = side(in.rejected);
  const Value* margin = in.object->find(std::string_view("margin"));
  if (margin == nullptr || margin->is_none()) return out;
  const auto number = number_in(*margin);
  if (!number) fail(*in.row, fmt::format("key \"margin\" must be a number, found {}", called(*margin, *in.row)));
  out.has_margin = true;
  out.margin = static_cast<float>(*number);
  return out;
}

/// The template's text in place of messages: what the prompt's has in common with those of both sides.
PreferenceTokenizer::Pieces PreferenceTokenizer::as_texts(const Pieces& in) const {
  if (!in.conversational) return in;
  const auto text = [&](const Value& messages) { return renderer_.render(messages, *in.object, *in.row).text; };
  const bool answers = asks(in.prompt, *in.row);
  const std::string prompt = renderer_.render(in.prompt, *in.object, *in.row, answers, !answers).text;
  const std::string chosen = text(joined(in.prompt, in.chosen)), rejected = text(joined(in.prompt, in.rejected));
  std::size_t border = 0;
  const auto shorter = std::min({prompt.size(), chosen.size(), rejected.size()});
  while (border < shorter && prompt[border] == chosen[border] && prompt[border] == rejected[border]) ++border;
  while (border > 0 && border < prompt.size() && is_continuation(prompt[border])) --border;
  Pieces out = in;
  out.prompt = Value(prompt.substr(0, border));
  out.chosen = Value(chosen.substr(border));
  out.rejected = Value(rejected.substr(border));
  return out;
}

PreferenceTokenizer::Answer PreferenceTokenizer::answer(const std::string& prompt, const std::string& completion,
                                                        const Pieces& in) const {
  const auto all = tokenizer_->encode(prompt + completion, false).ids;
  const auto alone = tokenizer_->encode(prompt, false).ids;
  if (all.size() < alone.size())
    fail(*in.row,
         "prompt and completion together have fewer tokens than the prompt alone; end the prompt where "
         "tokens end");
  auto border = alone.size();
  if (border > 0 && !std::equal(alone.begin(), alone.end(), all.begin())) --border;
  Answer out{{all.begin(), all.begin() + static_cast<std::ptrdiff_t>(border)}, from(all, border)};
  const auto bos = tokenizer_->bos_id(), eos = tokenizer_->eos_id();
  if (bos >= 0 && (out.prompt.empty() || out.prompt.front() != bos)) out.prompt.insert(out.prompt.begin(), bos);
  if (out.completion.empty() || out.completion.back() != eos) out.completion.push_back(eos);
  return out;
}

PreferenceRow PreferenceTokenizer::own_prompts(const Pieces& pieces) const {
  const Pieces in = as_texts(pieces);
  auto chosen = answer(in.prompt.text(), in.chosen.text(), in);
  auto rejected = answer(in.prompt.text(), in.rejected.text(), in);
  const auto shorter = std::min(chosen.prompt.size(), rejected.prompt.size());
  std::size_t differences = std::max(chosen.prompt.size(), rejected.prompt.size()) - shorter > 1 ? 2 : 0;
  for (std::size_t i = 0; i < shorter; ++i) differences += chosen.prompt[i] != rejected.prompt[i];
  if (differences > 1)
    fail(*in.row,
         "the tokens of the prompt differ before \"chosen\" and before \"rejected\" in more than the last "
         "one; end the prompt where tokens end");
  PreferenceRow out;
  out.has_prompt = !is_empty_text(in.prompt);
  for (auto* side : {&chosen, &rejected}) {
    const auto most = static_cast<std::size_t>(options_.max_length);
    if (most > 0) cut_to(side->completion, most > side->prompt.size() ? most - side->prompt.size() : 0);
  }
  out.prompt = std::move(chosen.prompt), out.chosen = std::move(chosen.completion);
  out.rejected_prompt = std::move(rejected.prompt), out.rejected = std::move(rejected.completion);
  return out;
}

std::vector<PreferenceRow> PreferenceTokenizer::tokenize(const SourceRow& row) const {
  const auto object = parse_row(row);
  if (options_.form == PreferenceForm::kUnpaired && object->find(std::string_view("chosen")) == nullptr) {
    Pieces in;
    in.object = object.get();
    in.row = &row;
    in.prompt = text_or_messages(value_at(*object, "prompt", row), "prompt", row);
    const auto completion = text_or_messages(value_at(*object, "completion", row), "completion", row);
    in.conversational = !completion.is_text();
    if (in.prompt.is_text() == in.conversational)
      fail(row, "\"prompt\" and \"completion\" must both be texts or both be lists of messages");
    return {unpaired(in, completion, label_at(*object, row))};
  }
  const Pieces in = pair_of(*object, row);
  switch (options_.form) {
    case PreferenceForm::kPairs:
      return {pair(in)};
    case PreferenceForm::kOwnPrompt:
      return {own_prompts(in)};
    case PreferenceForm::kUnpaired:
      return {unpaired(in, in.chosen, true), unpaired(in, in.rejected, false)};
    case PreferenceForm::kWhole:
      return {whole(in)};
  }
  throw InternalError("no such form of preference data");
}

bool PreferenceTokenizer::drops(const PreferenceRow& row) const {
  const auto most = static_cast<std::size_t>(options_.max_length);
  if (most == 0) return false;
  switch (options_.form) {
    case PreferenceForm::kPairs:
      return options_.truncation_mode == TruncationMode::kKeepStart && row.prompt.size() >= most;
    case PreferenceForm::kUnpaired:
      return row.prompt.size() >= most;
    case PreferenceForm::kWhole:
      return row.chosen.size() > most || row.rejected.size() > most;
    case PreferenceForm::kOwnPrompt:
      return false;
  }
  throw InternalError("no such form of preference data");
}

}  // namespace tessera::data
