#include <ostream>

#include "config/options.h"
#include "tasks/adapter_list.h"
#include "tasks/parse_task.h"
#include "tasks/sft.h"
#include "tasks/sft_training.h"

namespace tessera::tasks {
namespace {

using config::Unused;

constexpr config::UnusedFlag kIdle[] = {
    {"--use_flash_attn", Unused::kBool, "attention never stores the scores of a row where the model allows it"},
    {"--use_unsloth", Unused::kBool, "kernels are fused already"},
    {"--shuffle_dataset", Unused::kBool, "rows are drawn in a new order in each epoch"},
};

constexpr config::RefusedFlag kRefused[] = {
    {"--dataset_kwargs", Unused::kText, "--add_special_tokens and --append_concat_token say what it could"},
    {"--truncation_mode", Unused::kText, "long rows keep their beginning; leave it out", "keep_start"},
};

void add_model(config::OptionTable& table, SftOptions& o) {
  const char* group = "Model";
  table
      .add(&o.model_name_or_path, {"--model_name_or_path", "--model"},
           "folder, or name on the Hub (org/name[@revision]), of a causal language model", group)
      .required();
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", group);
  add_trl_model_flags(table, o);
  add_router_flag(table, o);
  for (const auto& flag : kIdle) table.add_without_effect(flag);
  for (const auto& flag : kRefused) table.add_refused(flag);
}

void add_data(config::OptionTable& table, SftOptions& o) {
  const char* group = "Data";
  data::SftDataOptions& d = o.data;
  table.add(&d.dataset_name, {"--dataset_name", "--dataset_path"},
            "a file, a folder with a file (or several) for each split, or org/name on the Hub: JSONL, JSON, CSV, text, "
            "Parquet",
            group);
  table.add(&d.dataset_config, {"--dataset_config", "--dataset_config_name"},
            "the folder of one of several configurations in it", group);
  table.add(&d.splits, {"--splits"}, "the first is trained on, the second evaluated on", group);
  add_trl_data_flags(table, o);
  table.add(&o.chat_template_format, {"--chat_template_format"}, "none: the tokenizer's own template", group)
      .choices({"chatml", "zephyr", "none"});
  table.add(
      &o.chat_template_path, {"--chat_template_path", "--chat_template"},
      "file of a template, the template itself, or folder of a tokenizer whose template, added tokens and eos are "
      "taken; empty: the tokenizer's own",
      group);
  table
      .add(&d.max_length, {"--max_length", "--max_seq_length", "--max_seq_len"}, "tokens of a row; none or 0: no limit",
           group)
      .reads("none", "0");
  table.add(&d.packing, {"--packing"}, "fill rows with several documents", group);
  table
      .add_enum(&d.packing_strategy,
                {{"bfd", data::PackingStrategy::kBfd},
                 {"bfd_split", data::PackingStrategy::kBfdSplit},
                 {"wrapped", data::PackingStrategy::kWrapped}},
                {"--packing_strategy"},
                "bfd: best-fit decreasing, no attention across documents; bfd_split: long documents are cut into "
                "several; wrapped: one stream of tokens cut into rows",
                group)
      .only_with({{"--packing", {"true"}}, {"--eval_packing", {"true"}}});
  table.add(&d.eval_packing, {"--eval_packing"}, "none: as packing", group)
      .only_with({{"--eval_strategy", {"steps", "epoch"}}, {"--eval_on_start", {"true"}}, {"--do_train", {"false"}}});
  add_row_reading_flags(table, d, group);
  table.add(&o.padding_free, {"--padding_free"}, "rows one behind the other instead of padded", group);
  table
      .add(&o.pad_to_multiple_of, {"--pad_to_multiple_of"}, "length of padded batches; none and auto: any length",
           group)
      .reads("none", "1")
      .reads("auto", "1");
  table.add(&o.eos_token, {"--eos_token"}, "empty: the tokenizer's", group);
  table.add(&o.pad_token, {"--pad_token"}, "empty: the tokenizer's, or eos", group);
  table.add(&d.dataset_num_proc, {"--dataset_num_proc"}, "threads that tokenise; 0: one for each core", group);
  table.add(&d.cache_folder, {"--dataset_cache_dir"}, "of tokenised rows; empty: in the user's cache", group);
}

void add_output(config::OptionTable& table, SftOptions& o) {
  const char* group = "Output";
  table.add(&o.eval_generate, {"--eval_generate"},
            "answer the first so many prompts of the evaluation split at each evaluation, printed beside what was "
            "expected and kept in metrics.jsonl",
            group);
  table.add(&o.eval_generate_max_new_tokens, {"--eval_generate_max_new_tokens"}, "longest of these answers", group)
      .only_with({{"--eval_generate", {config::kSet}}});
  add_job_flags(table, o, group);
}

void check(const config::OptionTable& table, SftOptions& o, config::Problems& problems) {
  check_trl_flags(o, table, o, o.data, problems);
  problems.require(o.chat_template_path.empty() || o.chat_template_format == "none",
                   "--chat_template_path and --chat_template_format exclude each other", "chat_template_path");
  problems.require(o.pad_to_multiple_of >= 1, "--pad_to_multiple_of must be at least 1", "pad_to_multiple_of");
  problems.require(o.eval_generate >= 0, "--eval_generate must not be negative", "eval_generate");
  problems.require(o.eval_generate_max_new_tokens > 0, "--eval_generate_max_new_tokens must be at least 1",
                   "eval_generate_max_new_tokens");
  problems.require(o.eval_generate == 0 || o.training.eval_strategy != train::Interval::kNo,
                   "--eval_generate answers prompts at evaluations, but --eval_strategy is no", "eval_generate");
  if (o.eval_generate > 0 && o.training.insists_on_evaluation.empty())
    o.training.insists_on_evaluation = "--eval_generate";
}

}  // namespace

void add_row_reading_flags(config::OptionTable& table, data::SftDataOptions& d, const char* group) {
  table.add(&d.dataset_text_field, {"--dataset_text_field"}, "column of plain texts", group);
  table.add(&d.add_special_tokens, {"--add_special_tokens"},
            "what the tokenizer adds around a text (bos, ...), as in TRL", group);
  table.add(&d.append_concat_token, {"--append_concat_token"}, "end every row with eos", group);
  table.add(&d.standardize_roles, {"--standardize_roles"},
            "ShareGPT's human and gpt are called user and assistant; false: they keep their names, as in TRL", group);
  table.add(&d.completion_only_loss, {"--completion_only_loss"},
            "train on completions only; none: where rows have a prompt and a completion", group);
  table.add(&d.assistant_only_loss, {"--assistant_only_loss"},
            "train on the assistant's turns only ({% generation %} in the template)", group);
}

/// The script's defaults.
SftOptions::SftOptions() {
  adapter.use_peft_lora = false;
  adapter.lora_r = 64;
  adapter.lora_alpha = 16;
  adapter.lora_target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"};
  training.output_dir = "tessera_sft";
}

config::OptionTable sft_table(SftOptions& o) {
  config::OptionTable table("tessera sft", "fine-tunes a causal language model on chats or texts, fully sharded");
  table.example(
      "--model_name_or_path HuggingFaceTB/SmolLM2-135M-Instruct --dataset_name data/ --use_peft_lora true --output_dir "
      "out");
  add_model(table, o);
  add_lora_flags(table, o.adapter, "Adapters");
  add_adapter_list_flag(table, o);
  add_quant_flags(table, o.quant, "Packed weights");
  add_data(table, o);
  train::add_training_arguments(table, o.training);
  add_output(table, o);
  return table;
}

std::optional<SftOptions> parse_sft(const std::vector<std::string>& args, std::ostream& out) {
  SftOptions asked;
  config::OptionTable table = sft_table(asked);
  config::Problems ignored;  // what each adapter's flags mend is no problem
  const bool runs = parse_task(table, args, ignored) == config::ParseResult::kRun;
  if (!runs || asked.adapters_file.empty()) return parse_one_sft(args, out);
  auto options = parse_side_by_side(args, asked.adapters_file, out);
  options.given = table.given_values();
  return options;
}

std::optional<SftOptions> parse_one_sft(const std::vector<std::string>& args, std::ostream& out) {
  SftOptions o;
  config::OptionTable table = sft_table(o);
  config::Problems problems;
  if (parse_task(table, args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check_job(o, table, evaluation_names(o.training), problems);
  check(table, o, problems);
  problems.throw_all();
  return o;
}

}  // namespace tessera::tasks
