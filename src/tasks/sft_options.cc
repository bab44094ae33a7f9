#include <ostream>

#include "config/options.h"
#include "tasks/fsdp_options.h"
#include "tasks/sft.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using config::Unused;

constexpr config::UnusedFlag kWithoutEffect[] = {
    {"--use_flash_attn", Unused::kBool, "attention never stores the scores of a row where the model allows it"},
    {"--use_reentrant", Unused::kBool, "both kinds of checkpointing are the same here"},
    {"--use_nested_quant", Unused::kBool, "only with quantisation"},
    {"--bnb_4bit_compute_dtype", Unused::kText, "only with quantisation"},
    {"--bnb_4bit_quant_storage_dtype", Unused::kText, "only with quantisation"},
    {"--bnb_4bit_quant_type", Unused::kText, "only with quantisation"},
    {"--use_unsloth", Unused::kBool, "kernels are fused already"},
    {"--trust_remote_code", Unused::kBool, "no code is ever loaded"},
    {"--hub_private_repo", Unused::kBool, "only with --push_to_hub"},
    {"--hub_strategy", Unused::kText, "only with --push_to_hub"},
    {"--hub_model_id", Unused::kText, "only with --push_to_hub"},
    {"--hub_token", Unused::kText, "only with --push_to_hub"},
    {"--hub_always_push", Unused::kBool, "only with --push_to_hub"},
};

void add_model(config::OptionTable& table, SftOptions& o) {
  const char* group = "Model";
  table.add(&o.model_name_or_path, {"--model_name_or_path", "--model"}, "folder of a causal language model", group)
      .required();
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", group);
  table.add(
      &o.attn_implementation, {"--attn_implementation"},
      "eager: as transformers' eager code, where it differs (Falcon's linear biases); other values change nothing",
      group);
  table.add(&o.use_4bit_quantization, {"--use_4bit_quantization", "--load_in_4bit"}, "QLoRA; not available yet", group);
  table.add(&o.use_8bit_quantization, {"--use_8bit_quantization", "--load_in_8bit"}, "not available yet", group);
  for (const auto& flag : kWithoutEffect) table.add_without_effect(flag);
}

void add_data(config::OptionTable& table, SftOptions& o) {
  const char* group = "Data";
  data::SftDataOptions& d = o.data;
  table
      .add(&d.dataset_name, {"--dataset_name", "--dataset_path"},
           "a file, or a folder with a file (or several) for each split: JSONL, JSON, CSV, text, Parquet", group)
      .required();
  table.add(&d.splits, {"--splits"}, "the first is trained on, the second evaluated on", group);
  table.add(&d.dataset_text_field, {"--dataset_text_field"}, "column of plain texts", group);
  table.add(&o.chat_template_format, {"--chat_template_format"}, "none: the tokenizer's own template", group)
      .choices({"chatml", "zephyr", "none"});
  table.add(&d.max_length, {"--max_length", "--max_seq_length", "--max_seq_len"}, "tokens of a row", group);
  table.add(&d.packing, {"--packing"}, "fill rows with several documents", group);
  table.add_enum(&d.packing_strategy,
                 {{"bfd", data::PackingStrategy::kBfd},
                  {"bfd_split", data::PackingStrategy::kBfdSplit},
                  {"wrapped", data::PackingStrategy::kWrapped}},
                 {"--packing_strategy"},
                 "bfd: best-fit decreasing, no attention across documents; bfd_split: long documents are cut into "
                 "several; wrapped: one stream of tokens cut into rows",
                 group);
  table.add(&d.eval_packing, {"--eval_packing"}, "none: as packing", group);
  table.add(&d.add_special_tokens, {"--add_special_tokens"}, "what the tokenizer adds around a text", group);
  table.add(&d.append_concat_token, {"--append_concat_token"}, "end every row with eos", group);
  table.add(&d.standardize_roles, {"--standardize_roles"},
            "ShareGPT's human and gpt are called user and assistant; false: they keep their names, as in TRL", group);
  table.add(&d.completion_only_loss, {"--completion_only_loss"},
            "train on completions only; none: where rows have a prompt and a completion", group);
  table.add(&d.assistant_only_loss, {"--assistant_only_loss"},
            "train on the assistant's turns only ({% generation %} in the template)", group);
  table.add(&o.padding_free, {"--padding_free"}, "rows one behind the other instead of padded", group);
  table.add(&o.pad_to_multiple_of, {"--pad_to_multiple_of"}, "length of padded batches", group);
  table.add(&o.eos_token, {"--eos_token"}, "empty: the tokenizer's", group);
  table.add(&o.pad_token, {"--pad_token"}, "empty: the tokenizer's, or eos", group);
  table.add(&d.dataset_num_proc, {"--dataset_num_proc"}, "threads that tokenise; 0: one for each core", group);
  table.add(&o.dataset_streaming, {"--dataset_streaming", "--streaming"},
            "read only as many rows as --max_steps needs, in the order of the files. Without it all rows are tokenised "
            "first; in neither case are they held in memory",
            group);
  table.add(&d.cache_folder, {"--dataset_cache_dir"}, "of tokenised rows; empty: in the user's cache", group);
}

void check(SftOptions& o) {
  require_option(
      !o.push_to_hub,
      "--push_to_hub is not available yet: nothing is uploaded. Leave it out; the adapter or model in --output_dir "
      "can be uploaded as it is",
      "push_to_hub");
  require_option(!o.use_4bit_quantization && !o.use_8bit_quantization,
                 "4-bit and 8-bit quantisation (QLoRA) are not available yet; leave out --use_4bit_quantization and "
                 "--use_8bit_quantization, or use --bf16 to halve the frozen weights",
                 "use_4bit_quantization");
  require_option(!o.dataset_streaming || o.training.max_steps > 0,
                 "--dataset_streaming reads no further than the steps need: say how many with --max_steps",
                 "dataset_streaming");
  check_lora_flags(o.adapter);
  require_option(o.eval_generate >= 0 && o.eval_generate_max_new_tokens > 0,
                 "--eval_generate takes a number of prompts, --eval_generate_max_new_tokens at least 1",
                 "eval_generate");
  require_option(o.eval_generate == 0 || o.training.eval_strategy != train::Interval::kNo,
                 "--eval_generate answers prompts at evaluations, but --eval_strategy is no", "eval_generate");
  require_option(o.adapter.use_peft_lora || (!o.adapter.use_dora && o.adapter.lora_modules_to_save.empty()),
                 "--use_dora and --lora_modules_to_save need --use_peft_lora true", "use_peft_lora");
}

}  // namespace

LoraFlags sft_lora_flags() {
  LoraFlags flags;
  flags.use_peft_lora = false;
  flags.lora_r = 64;
  flags.lora_alpha = 16;
  flags.lora_target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"};
  return flags;
}

std::optional<SftOptions> parse_sft(const std::vector<std::string>& args, std::ostream& out) {
  SftOptions o;
  o.training.output_dir = "tessera_sft";
  config::OptionTable table("tessera sft", "fine-tunes a causal language model on chats or texts, fully sharded");
  add_model(table, o);
  add_lora_flags(table, o.adapter, "Adapters");
  add_data(table, o);
  train::add_training_arguments(table, o.training);
  const char* group = "Output";
  table.add(&o.eval_generate, {"--eval_generate"},
            "answer the first so many prompts of the evaluation split at each evaluation, printed beside what was "
            "expected and kept in metrics.jsonl",
            group);
  table.add(&o.eval_generate_max_new_tokens, {"--eval_generate_max_new_tokens"}, "longest of these answers", group);
  table.add(&o.push_to_hub, {"--push_to_hub"}, "not available yet", group);
  table.add(&o.print_model, {"--print_model"}, "print the sharded model before training", group);
  table.add(&o.save_model, {"--save_model"}, "save the adapter (or model) at the end", group);
  table.add_enum(&o.gather, gather_forms(), {"--gather"}, "how sharded units become readable", group);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  train::check_training_arguments(o.training, table, o.notes);
  check(o);
  o.scale_loss = launch_settings(o.training.bf16, o.training.fp16).mixed_precision == config::MixedPrecision::kFp16;
  return o;
}

}  // namespace tessera::tasks
