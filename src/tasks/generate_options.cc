#include <nlohmann/json.hpp>
#include <ostream>

#include "config/options.h"
#include "tasks/fsdp_options.h"
#include "tasks/generate.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

// generate()'s arguments that the command line may set; unset ones stay what generation_config.json says.
struct Settings {
  std::optional<std::int64_t> max_new_tokens = 128, min_new_tokens, num_beams, num_return_sequences, top_k,
                              no_repeat_ngram_size;
  std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty, length_penalty;
  std::optional<bool> do_sample;
};

template <class T>
void put(nlohmann::json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

nlohmann::json as_json(const Settings& s) {
  nlohmann::json json = nlohmann::json::object();
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

void add_decoding(config::OptionTable& table, Settings& s, GenerateOptions& o) {
  const char* group = "Decoding (default: the model's generation_config.json)";
  table.add(&s.max_new_tokens, {"--max_new_tokens"}, "at most so many new tokens", group);
  table.add(&s.min_new_tokens, {"--min_new_tokens"}, "no end before so many", group);
  table.add(&s.do_sample, {"--do_sample"}, "draw tokens; false: the likeliest", group);
  table.add(&s.temperature, {"--temperature"}, "of the distribution drawn from", group);
  table.add(&s.top_k, {"--top_k"}, "draw from the likeliest so many; 0: all", group);
  table.add(&s.top_p, {"--top_p"}, "draw from the likeliest that hold this mass", group);
  table.add(&s.min_p, {"--min_p"}, "leave out what is less likely than this part of the likeliest", group);
  table.add(&s.typical_p, {"--typical_p"}, "mass of the locally typical tokens", group);
  table.add(&s.repetition_penalty, {"--repetition_penalty"}, "above 1: fewer repetitions", group);
  table.add(&s.no_repeat_ngram_size, {"--no_repeat_ngram_size"}, "no sequence of this length twice", group);
  table.add(&s.num_beams, {"--num_beams"}, "beam search", group);
  table.add(&s.length_penalty, {"--length_penalty"}, "of beam search; above 0 favours long texts", group);
  table.add(&s.num_return_sequences, {"--num_return_sequences"}, "texts for each prompt", group);
  table.add(&o.seed, {"--seed"}, "of the draws", group);
}

void check(const GenerateOptions& o) {
  const int sources = (o.prompt ? 1 : 0) + (o.message ? 1 : 0) + (o.input_file.empty() ? 0 : 1);
  if (sources != 1) throw ConfigError("give exactly one of --prompt, --message and --input_file", "prompt");
  if (!o.system_prompt.empty() && !o.message) throw ConfigError("--system goes with --message", "system");
  if (o.batch_size < 1) throw ConfigError("--batch_size must be at least 1", "batch_size");
}

}  // namespace

std::optional<GenerateOptions> parse_generate(const std::vector<std::string>& args, std::ostream& out) {
  GenerateOptions o;
  Settings settings;
  config::OptionTable table("tessera generate", "continues prompts, or answers conversations through a chat template");
  const char* group = "Model and text";
  table.add(&o.model, {"--model", "--model_name_or_path"}, "folder of the model", group).required();
  table.add(&o.tokenizer, {"--tokenizer", "--tokenizer_name_or_path"}, "if not the model's folder", group);
  table.add(&o.adapter, {"--adapter", "--adapter_name_or_path"}, "folder of a LoRA adapter", group);
  table.add(&o.prompt, {"--prompt"}, "text to continue", group);
  table.add(&o.message, {"--message"}, "user message to answer, through the chat template", group);
  table.add(&o.system_prompt, {"--system"}, "system message before it", group);
  table.add(&o.input_file, {"--input_file"},
            "JSONL: a text, {\"prompt\": ...} or {\"messages\": [...]} a line; -: standard input", group);
  table.add(&o.chat_template, {"--chat_template"}, "file, or chatml or zephyr, instead of the tokenizer's", group);
  table.add(&o.batch_size, {"--batch_size"}, "prompts decoded together", group);
  table.add(&o.stream, {"--stream"}, "print a single answer token by token", group);
  table.add(&o.skip_special_tokens, {"--skip_special_tokens"}, "leave special tokens out of the text", group);
  table.add_enum(&o.gather, gather_forms(), {"--gather"}, "how sharded units become readable", group);
  add_decoding(table, settings, o);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  o.settings = as_json(settings);
  check(o);
  return o;
}

}  // namespace tessera::tasks
