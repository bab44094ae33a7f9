#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "config/options.h"
#include "tasks/fsdp_options.h"
#include "tasks/generate.h"

namespace tessera::tasks {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

nlohmann::json parsed(const std::string& flag, const std::string& text, const char* expected) {
  const auto is_id = [](const nlohmann::json& value) { return value.is_number_integer() && value >= 0; };
  const auto are_ids = [&](const nlohmann::json& value) {
    return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_id);
  };
  auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool holds =
      flag == "eos_token_id" ? are_ids(value) : value.is_array() && std::all_of(value.begin(), value.end(), are_ids);
  if (!holds) throw ConfigError("--" + flag + " expects " + expected + "; found '" + text + "'", flag);
  return value;
}

template <class T>
void put(nlohmann::json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

/// Throws ConfigError where a text is not what generation_config.json would have there.
nlohmann::json as_json(const DecodingFlags& s) {
  nlohmann::json json = nlohmann::json::object();
  if (s.early_stopping)
    json["early_stopping"] = nlohmann::json::parse(*s.early_stopping == "never" ? "\"never\"" : *s.early_stopping);
  if (s.eos_token_id)
    json["eos_token_id"] = parsed("eos_token_id", "[" + joined(*s.eos_token_id) + "]", "token ids, 2,7");
  if (!s.bad_words_ids.empty())
    json["bad_words_ids"] = parsed("bad_words_ids", s.bad_words_ids, "lists of token ids, [[5],[7,8]]");
  put(json, "max_length", s.max_length);
  put(json, "epsilon_cutoff", s.epsilon_cutoff);
  put(json, "renormalize_logits", s.renormalize_logits);
  put(json, "max_new_tokens", s.max_new_tokens);
  put(json, "min_new_tokens", s.min_new_tokens);
  put(json, "num_beams", s.num_beams);
  put(json, "num_return_sequences", s.num_return_sequences);
  put(json, "top_k", s.top_k);
  put(json, "no_repeat_ngram_size", s.no_repeat_ngram_size);
  put(json, "temperature", s.temperature);
  put(json, "top_p", s.top_p);
  put(json, "min_p", s.min_p);
  put(json, "typical_p", s.typical_p);
  put(json, "repetition_penalty", s.repetition_penalty);
  put(json, "length_penalty", s.length_penalty);
  put(json, "do_sample", s.do_sample);
  return json;
}

/// Of what the model computes with.
void add_dtype(config::OptionTable& table, GenerateOptions& o, const char* group) {
  table.add_enum(&o.dtype, checkpoint::dtype_choices(), {"--dtype", "--torch_dtype"},
                 "of the weights and the computation; 16 bits need half the memory; auto: as config.json says", group);
}

constexpr const char* kDecoding = "Decoding (default: the model's generation_config.json)";

using config::Unused;

/// generate()'s arguments for which there is no code.
constexpr config::RefusedFlag kNotBuilt[] = {
    {"--stop_strings", Unused::kList, "a text ends at a token: name it with --eos_token_id"},
    {"--num_beam_groups", Unused::kNumber, "--do_sample with --num_return_sequences gives answers that differ", "1"},
    {"--diversity_penalty", Unused::kNumber, "--do_sample with --num_return_sequences gives answers that differ",
     "0.0"},
    {"--penalty_alpha", Unused::kNumber, "contrastive search is not built; try --repetition_penalty"},
    {"--guidance_scale", Unused::kNumber, "leave it out", "1.0"},
    {"--encoder_no_repeat_ngram_size", Unused::kNumber, "--no_repeat_ngram_size is for what is generated", "0"},
    {"--encoder_repetition_penalty", Unused::kNumber, "--repetition_penalty is for what is generated", "1.0"},
    {"--force_words_ids", Unused::kText, "ask for the words in the prompt"},
    {"--sequence_bias", Unused::kText, "--bad_words_ids keeps sequences out"},
    {"--assistant_model", Unused::kText, "one model answers; leave it out"},
    {"--cache_implementation", Unused::kText, "keys and values are always kept; leave it out"},
};

void add_decoding(config::OptionTable& table, DecodingFlags& s, GenerateOptions& o) {
  const char* group = kDecoding;
  table.add(&s.max_new_tokens, {"--max_new_tokens"}, "at most so many new tokens", group);
  table.add(&s.max_length, {"--max_length"}, "in place of --max_new_tokens: at most so many with the prompt", group);
  table.add(&s.min_new_tokens, {"--min_new_tokens"}, "no end before so many", group);
  table.add(&s.do_sample, {"--do_sample"}, "draw tokens; false: the likeliest", group);
  table.add(&s.temperature, {"--temperature"}, "of the distribution drawn from", group);
  table.add(&s.top_k, {"--top_k"}, "draw from the likeliest so many; 0: all", group);
  table.add(&s.top_p, {"--top_p"}, "draw from the likeliest that hold this mass", group);
  table.add(&s.min_p, {"--min_p"}, "leave out what is less likely than this part of the likeliest", group);
  table.add(&s.typical_p, {"--typical_p"}, "mass of the locally typical tokens", group);
  table.add(&s.epsilon_cutoff, {"--epsilon_cutoff"}, "leave out what is less likely than this; 0: nothing", group);
  table.add(&s.renormalize_logits, {"--renormalize_logits"}, "scores are probabilities again behind all changes",
            group);
  table.add(&s.repetition_penalty, {"--repetition_penalty"}, "above 1: fewer repetitions", group);
  table.add(&s.no_repeat_ngram_size, {"--no_repeat_ngram_size"}, "no sequence of this length twice", group);
  table.add(&s.eos_token_id, {"--eos_token_id"}, "ids of the tokens that end a text", group);
  table.add(&s.bad_words_ids, {"--bad_words_ids"}, "sequences of ids that never come: [[5],[7,8]]", group)
      .placeholder("JSON");
  table.add(&o.seed, {"--seed"}, "of the draws", group);
  for (const auto& flag : kNotBuilt) table.add_refused(flag);
}

void add_beams(config::OptionTable& table, DecodingFlags& s) {
  table.add(&s.num_beams, {"--num_beams"}, "beam search", kDecoding);
  table
      .add(&s.early_stopping, {"--early_stopping"},
           "beam search ends with as many texts as beams; never: when no better one can come", kDecoding)
      .choices({"true", "false", "never"});
  table.add(&s.length_penalty, {"--length_penalty"}, "of beam search; above 0 favours long texts", kDecoding);
  table.add(&s.num_return_sequences, {"--num_return_sequences"}, "texts for each prompt", kDecoding);
}

void add_device(config::OptionTable& table, GenerateOptions& o, const char* group) {
  table.add(&o.skip_special_tokens, {"--skip_special_tokens"}, "leave special tokens out of the text", group);
  train::add_device_flag(table, o.device, group);
}

/// Sampling's flags count only where tokens are drawn, which the model's file may say.
void remember_search(const config::OptionTable& table, GenerateOptions& o) {
  for (const char* flag :
       {"--temperature", "--top_k", "--top_p", "--min_p", "--typical_p", "--epsilon_cutoff", "--seed"})
    if (table.given(flag)) o.sampling_flags.emplace_back(flag);
  for (const char* flag : {"--length_penalty", "--early_stopping"})
    if (table.given(flag)) o.beam_flags.emplace_back(flag);
}

/// Of the two lengths the one that is given counts.
void take_decoding(const config::OptionTable& table, DecodingFlags s, GenerateOptions& o) {
  o.notes = table.notes();
  if (s.max_length && table.given("--max_new_tokens"))
    o.notes.emplace_back("--max_length has no effect with --max_new_tokens");
  else if (s.max_length)
    s.max_new_tokens = 0;
  o.settings = as_json(s);
}

void check_decoding(const DecodingFlags& s, config::Problems& problems) {
  const auto require = [&](const auto& value, auto&& holds, const std::string& flag, const char* what) {
    problems.require(!value || holds(*value), "--" + flag + " must " + what, flag);
  };
  const auto positive = [](auto v) { return v > 0; };
  const auto not_negative = [](auto v) { return v >= 0; };
  const auto in_unit = [](double v) { return v >= 0 && v <= 1; };
  require(s.max_new_tokens, positive, "max_new_tokens", "be at least 1");
  require(s.min_new_tokens, not_negative, "min_new_tokens", "not be negative");
  require(s.max_length, positive, "max_length", "be at least 1");
  require(s.num_beams, positive, "num_beams", "be at least 1");
  require(s.num_return_sequences, positive, "num_return_sequences", "be at least 1");
  require(s.no_repeat_ngram_size, not_negative, "no_repeat_ngram_size", "not be negative");
  require(s.top_k, not_negative, "top_k", "not be negative; 0 draws from all tokens");
  require(s.temperature, positive, "temperature", "be above 0; --do_sample false takes the likeliest tokens");
  require(s.repetition_penalty, positive, "repetition_penalty", "be above 0");
  require(s.typical_p, positive, "typical_p", "be above 0");
  require(s.top_p, in_unit, "top_p", "lie between 0 and 1");
  require(s.epsilon_cutoff, in_unit, "epsilon_cutoff", "lie between 0 and 1");
  require(s.min_p, in_unit, "min_p", "lie between 0 and 1");
  problems.require(!(s.do_sample.value_or(false) && s.num_beams.value_or(1) > 1),
                   "--num_beams must be 1 with --do_sample", "num_beams");
}

void check(const GenerateOptions& o, config::Problems& problems) {
  const int sources = (o.prompt ? 1 : 0) + (o.message ? 1 : 0) + (o.input_file.empty() ? 0 : 1);
  problems.require(sources == 1, "give exactly one of --prompt, --message and --input_file", "prompt");
  problems.require(o.system_prompt.empty() || o.message, "--system goes with --message", "system");
  problems.require(o.adapter_name.empty() || !o.adapters.empty(), "--adapter_name goes with --adapter", "adapter_name");
  problems.require(o.batch_size >= 1, "--batch_size must be at least 1", "batch_size");
}

}  // namespace

config::OptionTable generate_table(GenerateOptions& o, DecodingFlags& decoding) {
  config::OptionTable table("tessera generate", "continues prompts, or answers conversations through a chat template");
  const char* group = "Model and text";
  table
      .add(&o.model, {"--model", "--model_name_or_path"}, "folder, or name on the Hub, of the model or of an adapter",
           group)
      .required();
  table.add(&o.tokenizer, {"--tokenizer", "--tokenizer_name_or_path"}, "if not the adapter's or the model's folder",
            group);
  table
      .add(&o.adapter_words, {"--adapter", "--adapter_name_or_path"},
           "folder, or name on the Hub, of an adapter; several (NAME=FOLDER, the flag may be repeated): each row takes "
           "one",
           group)
      .repeats();
  table.add(&o.adapter_name, {"--adapter_name"},
            "which of several adapters answers, where a row's key \"adapter\" does not say; __base__: none of them; "
            "default: the first",
            group);
  table.add(&o.prompt, {"--prompt"}, "text to continue", group);
  table.add(&o.message, {"--message"}, "user message to answer, through the chat template", group);
  table.add(&o.system_prompt, {"--system"}, "system message before it", group);
  table.add(&o.input_file, {"--input_file"},
            "JSONL: a text, {\"prompt\": ...} or {\"messages\": [...]} a line; -: standard input", group);
  table.add(&o.chat_template, {"--chat_template"}, "file, or chatml or zephyr, instead of the tokenizer's", group)
      .only_with({{"--message", {config::kSet}}, {"--input_file", {config::kSet}}});
  table.add(&o.batch_size, {"--batch_size"}, "prompts decoded together", group)
      .only_with({{"--input_file", {config::kSet}}});
  table.add(&o.stream, {"--stream"}, "print a single answer token by token", group)
      .idle_with({"--input_file", {config::kSet}});
  table.add_enum(&o.gather, gather_forms(), {"--gather"}, "how sharded units become readable", group);
  add_dtype(table, o, group);
  add_device(table, o, group);
  add_decoding(table, decoding, o);
  add_beams(table, decoding);
  table.example("--model HuggingFaceTB/SmolLM2-135M-Instruct --adapter out --message 'What is a pear?'");
  return table;
}

std::optional<GenerateOptions> parse_generate(const std::vector<std::string>& args, std::ostream& out) {
  GenerateOptions o;
  DecodingFlags settings;
  config::OptionTable table = generate_table(o, settings);
  config::Problems problems;
  if (table.parse(args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  problems.attempt([&] { o.adapters = named_folders(o.adapter_words, "--adapter"); });
  check(o, problems);
  check_decoding(settings, problems);
  problems.attempt([&] { take_decoding(table, settings, o); });
  problems.throw_all();
  remember_search(table, o);
  return o;
}

std::optional<GenerateOptions> parse_chat(const std::vector<std::string>& args, std::ostream& out) {
  GenerateOptions o;
  DecodingFlags decoding;
  decoding.max_new_tokens = 512;
  config::OptionTable table(
      "tessera chat",
      "talks to a model: a message a line from standard input, answers as they come. /reset forgets the conversation, "
      "/exit leaves");
  const char* group = "Model and text";
  table
      .add(&o.model, {"--model", "--model_name_or_path"}, "folder, or name on the Hub, of the model or of an adapter",
           group)
      .required();
  table.add(&o.adapter_words, {"--adapter", "--adapter_name_or_path"}, "folder, or name on the Hub, of an adapter",
            group);
  table.add(&o.tokenizer, {"--tokenizer", "--tokenizer_name_or_path"}, "if not the adapter's or the model's folder",
            group);
  table.add(&o.system_prompt, {"--system"}, "system message before the conversation", group);
  table.add(&o.chat_template, {"--chat_template"}, "file, or chatml or zephyr, instead of the tokenizer's", group);
  add_dtype(table, o, group);
  add_device(table, o, group);
  add_decoding(table, decoding, o);
  table.example("--model HuggingFaceTB/SmolLM2-135M-Instruct --adapter out");
  config::Problems problems;
  if (table.parse(args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  problems.attempt([&] { o.adapters = named_folders(o.adapter_words, "--adapter"); });
  problems.require(o.adapters.size() < 2, "--adapter takes one folder here; 'tessera generate' answers with several",
                   "adapter");
  check_decoding(decoding, problems);
  problems.attempt([&] { take_decoding(table, decoding, o); });
  problems.throw_all();
  return o;
}

}  // namespace tessera::tasks
