#include "data/sft_tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "chat/jinja/json.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "data/chat_rows.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using chat::Value;

const std::string& text_at(const chat::Dict& object, std::string_view key, const SourceRow& row) {
  const Value* value = object.find(key);
  if (value == nullptr) fail(row, fmt::format("key \"{}\" is missing", key));
  if (!value->is_text()) fail(row, fmt::format("key \"{}\" must be a text, found {}", key, called(*value, row)));
  return value->text();
}

/// A list of whole numbers; in a CSV file, its JSON.
std::vector<std::int32_t> numbers_at(const chat::Dict& object, std::string_view key, std::int64_t below,
                                     const SourceRow& row, bool takes_ignored = false) {
  const Value* value = object.find(key);
  if (value == nullptr) fail(row, fmt::format("key \"{}\" is missing", key));
  Value list = *value;
  if (value->is_text()) {
    try {
      list = chat::parse_json(value->text());
    } catch (const chat::TemplateError&) {  // what it is, is said below
    }
  }
  if (!list.is<chat::ListPtr>())
    fail(row, fmt::format("key \"{}\" must be a list of numbers, found {}", key, called(*value, row)));
  std::vector<std::int32_t> out;
  for (const auto& item : chat::iterate(list)) {
    const auto number = item.integer();
    const bool fits = number && number->is_small() && number->small() >= 0 && number->small() < below;
    if (!fits && !(takes_ignored && number == chat::Integer(-100)))
      fail(row, fmt::format("key \"{}\" must be a list of whole numbers below {}{}, found {} in it", key, below,
                            takes_ignored ? ", or -100" : "", chat::repr(item)));
    out.push_back(static_cast<std::int32_t>(number->small()));
  }
  return out;
}

/// The row, not asking for a generation prompt itself.
chat::Dict without_generation_prompt(const chat::Dict& row) {
  chat::Dict out;
  for (const auto& [key, value] : row.items()) {
    const auto* kwargs = key.text() == "chat_template_kwargs" ? value.get<chat::DictPtr>() : nullptr;
    if (kwargs == nullptr) {
      out.set(key, value);
      continue;
    }
    chat::Dict rest;
    for (const auto& [name, argument] : (*kwargs)->items())
      if (name.text() != "add_generation_prompt") rest.set(name, argument);
    out.set(key, chat::make_dict(std::move(rest)));
  }
  return out;
}

}  // namespace

const char* name_of(RowKind kind) {
  switch (kind) {
    case RowKind::kTokens:
      return "input_ids";
    case RowKind::kMessages:
      return "messages";
    case RowKind::kPromptCompletion:
      return "prompt and completion";
    case RowKind::kInstruction:
      return "instruction and output";
    case RowKind::kText:
      return "text";
  }
  throw InternalError("no such kind of row");
}

RowKind kind_of_row(const chat::Dict& row, const std::string& text_field, const std::string& where) {
  const auto has = [&](std::string_view key) { return row.find(key) != nullptr; };
  if (has("input_ids")) return RowKind::kTokens;
  if (has("prompt") && has("completion")) return RowKind::kPromptCompletion;
  if (has("messages") || has("conversations")) return RowKind::kMessages;
  if (has(text_field)) return RowKind::kText;
  if (has("instruction") && has("output")) return RowKind::kInstruction;
  std::vector<std::string> columns;
  for (const auto& [key, value] : row.items())
    if (key.is_text()) columns.push_back(key.text());
  throw DataError(
      fmt::format("{}: no column to learn from; expected messages or conversations, prompt and completion, instruction "
                  "and output, input_ids, or the text column '{}' (--dataset_text_field); found {}{}",
                  where, text_field, columns.empty() ? "no columns" : fmt::format("{}", fmt::join(columns, ", ")),
                  has("chosen") && has("rejected") ? ", which 'tessera dpo' (orpo, cpo, reward) learns from" : ""));
}

struct SftTokenizer::Conversation {
  Value messages;
  const chat::Dict& object;  // the row: tools, chat_template_kwargs
};

SftTokenizer::SftTokenizer(const SftDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer,
                           RowKind kind)
    : options_(options),
      tokenizer_(std::move(tokenizer)),
      kind_(kind),
      roles_(options.standardize_roles ? RoleNames::kStandard : RoleNames::kAsTheyAre),
      renderer_(options.chat_template, options.template_place, *tokenizer_) {
  if (options.assistant_only_loss && kind != RowKind::kMessages && kind != RowKind::kPromptCompletion)
    throw ConfigError(
        fmt::format("--assistant_only_loss needs conversations (messages), the rows have {}", name_of(kind)),
        "assistant_only_loss");
  if (options.completion_only_loss.value_or(false) && (kind == RowKind::kMessages || kind == RowKind::kText))
    throw ConfigError(
        fmt::format("--completion_only_loss needs rows with prompt and completion, the rows have {}", name_of(kind)),
        "completion_only_loss");
  eos_ = tokenizer_->special_tokens().eos;
}

SftRow SftTokenizer::tokenize(const SourceRow& row) const {
  const auto object = parse_row(row);
  switch (kind_) {
    case RowKind::kTokens:
      return read_tokens(*object, row);
    case RowKind::kMessages:
      return tokenize_messages(*object, row);
    case RowKind::kPromptCompletion: {
      for (const char* key : {"prompt", "completion"}) {
        const Value* value = object->find(std::string_view(key));
        if (value == nullptr) fail(row, fmt::format("key \"{}\" is missing", key));
        if (!value->is_text() && !value->is<chat::ListPtr>())
          fail(row, fmt::format("key \"{}\" must be a text or a list of messages, found {}", key, called(*value, row)));
      }
      return tokenize_pair(*object->find(std::string_view("prompt")), *object->find(std::string_view("completion")),
                           *object, row);
    }
    case RowKind::kInstruction:
      return tokenize_instruction(*object, row);
    case RowKind::kText:
      return finish(encode(with_eos(text_at(*object, options_.dataset_text_field, row))), 0, row);
  }
  throw InternalError("no such kind of row");
}

SftSample SftTokenizer::split(const SourceRow& row) const {
  SftRow all;
  std::size_t begin = 0;
  if (kind_ == RowKind::kMessages) {
    const auto object = parse_row(row);
    auto question = chat::iterate(read_messages(*object, row));
    if (question.empty()) fail(row, "a conversation without messages");
    const Value answer = question.back();
    question.pop_back();
    all = tokenize_pair(chat::make_list(std::move(question)), chat::make_list({answer}),
                        without_generation_prompt(*object), row);
  } else {
    all = tokenize(row);
    if (kind_ == RowKind::kText || kind_ == RowKind::kTokens) begin = (all.labels.size() + 1) / 2;
  }
  while (begin < all.labels.size() && all.labels[begin] == -100) ++begin;
  const auto middle = all.input_ids.begin() + static_cast<std::ptrdiff_t>(begin);
  return {{all.input_ids.begin(), middle}, {middle, all.input_ids.end()}};
}

std::string SftTokenizer::with_eos(std::string text) const {
  return eos_.empty() || text.ends_with(eos_) ? std::move(text) : std::move(text) + eos_;
}

SftTokenizer::Tokens SftTokenizer::encode(const std::string& text) const {
  return {tokenizer_->encode(text, options_.add_special_tokens).ids, {}};
}

SftTokenizer::Tokens SftTokenizer::render(const Conversation& chat, const SourceRow& row, bool with_mask,
                                          std::optional<bool> add_generation_prompt) const {
  const auto rendered = renderer_.render(chat.messages, chat.object, row, add_generation_prompt);
  const text::Encoding encoding = tokenizer_->encode(rendered.text, false);
  Tokens out{encoding.ids, {}};
  if (with_mask) out.assistant = assistant_mask(encoding, rendered.generation_spans);
  return out;
}

SftRow SftTokenizer::read_tokens(const chat::Dict& object, const SourceRow& row) const {
  const auto has = [&](std::string_view key) { return object.find(key) != nullptr; };
  const std::int64_t ids = tokenizer_->vocab_size();
  SftRow out;
  out.input_ids = numbers_at(object, "input_ids", ids, row);
  out.document_lengths = {static_cast<std::int32_t>(out.input_ids.size())};
  const auto beside = [&](std::string_view key, std::int64_t below, bool takes_ignored = false) {
    auto numbers = numbers_at(object, key, below, row, takes_ignored);
    if (numbers.size() != out.input_ids.size())
      fail(row, fmt::format("key \"{}\" must be as long as \"input_ids\", {}, found {}", key, out.input_ids.size(),
                            numbers.size()));
    return numbers;
  };
  if (has("labels")) {
    out.labels = beside("labels", ids, /*takes_ignored=*/true);
    return out;
  }
  out.labels = out.input_ids;
  const auto apply = [&](const std::vector<std::int32_t>& mask) {
    for (std::size_t i = 0; i < mask.size(); ++i)
      if (mask[i] == 0) out.labels[i] = -100;
  };
  if (has("assistant_masks")) apply(beside("assistant_masks", 2));
  if (options_.completion_only_loss.value_or(has("prompt") && has("completion"))) apply(beside("completion_mask", 2));
  return out;
}

SftRow SftTokenizer::tokenize_messages(const chat::Dict& object, const SourceRow& row) const {
  const Value messages = read_messages(object, row, roles_);
  Tokens tokens = render({messages, object}, row, options_.assistant_only_loss);
  return finish(std::move(tokens), 0, row);
}

SftRow SftTokenizer::tokenize_pair(const Value& prompt, const Value& completion, const chat::Dict& object,
                                   const SourceRow& row) const {
  Tokens before, all;
  if (prompt.is_text() && completion.is_text()) {
    before = encode(prompt.text());
    all = encode(prompt.text() + with_eos(completion.text()));
  } else {
    const Value first = check_messages(prompt, "prompt", row, roles_),
                second = check_messages(completion, "completion", row, roles_);
    auto messages = chat::iterate(first);
    for (const auto& message : chat::iterate(second)) messages.push_back(message);
    before = render({first, object}, row, false, true);
    all = render({chat::make_list(std::move(messages)), object}, row, options_.assistant_only_loss);
  }
  // The completion begins where the tokens part, which need not be behind the prompt: tokens merge across the border.
  const auto shorter = static_cast<std::ptrdiff_t>(std::min(before.ids.size(), all.ids.size()));
  const auto parted = std::mismatch(before.ids.begin(), before.ids.begin() + shorter, all.ids.begin()).first;
  return finish(std::move(all), static_cast<std::size_t>(parted - before.ids.begin()), row);
}

SftRow SftTokenizer::tokenize_instruction(const chat::Dict& object, const SourceRow& row) const {
  const std::string& instruction = text_at(object, "instruction", row);
  const std::string& output = text_at(object, "output", row);
  const Value* given = object.find(std::string_view("input"));
  const std::string input = given != nullptr && given->is_text() ? given->text() : "";
  if (!renderer_.has_template()) {
    const std::string prompt = fmt::format("### Instruction:\n{}\n\n{}### Response:\n", instruction,
                                           input.empty() ? "" : fmt::format("### Input:\n{}\n\n", input));
    return tokenize_pair(Value(prompt), Value(output), object, row);
  }
  return tokenize_pair(make_messages("user", input.empty() ? instruction : instruction + "\n\n" + input),
                       make_messages("assistant", output), object, row);
}

SftRow SftTokenizer::finish(Tokens tokens, std::size_t prompt_size, const SourceRow& row) const {
  const bool masked = !tokens.assistant.empty();
  if (options_.assistant_only_loss &&
      (!masked || std::find(tokens.assistant.begin(), tokens.assistant.end(), true) == tokens.assistant.end()))
    fail(row,
         "--assistant_only_loss, but this conversation has no token of the assistant; the chat template must put the "
         "assistant's text between {% generation %} and {% endgeneration %}");
  if (!options_.completion_only_loss.value_or(true)) prompt_size = 0;
  const std::int32_t eos = tokenizer_->eos_id();
  if (options_.append_concat_token && eos >= 0 && (tokens.ids.empty() || tokens.ids.back() != eos)) {
    tokens.ids.push_back(eos);
    if (masked) tokens.assistant.push_back(tokens.assistant.back());
  }
  SftRow out;
  out.input_ids = std::move(tokens.ids);
  out.labels = out.input_ids;
  for (std::size_t i = 0; i < out.labels.size(); ++i)
    if (i < prompt_size || (masked && !tokens.assistant[i])) out.labels[i] = -100;
  out.document_lengths = {static_cast<std::int32_t>(out.input_ids.size())};
  return out;
}

}  // namespace tessera::data
