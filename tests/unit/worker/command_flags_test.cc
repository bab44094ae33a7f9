// The flags of the commands that do not train: each changes something, or says that it does not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string_view>

#include "cli/commands.h"
#include "support/program.h"
#include "tasks/chat.h"
#include "tasks/combine.h"
#include "tasks/export.h"
#include "tasks/init_model.h"
#include "tasks/inspect.h"
#include "tasks/merge.h"
#include "tasks/quantize.h"
#include "tasks/render.h"
#include "tasks/sft.h"
#include "unit/tasks/flag_sweep.h"
#include "verify/verify.h"

namespace tessera {
namespace {

using tasks::Words;
using test::operator+;
using Function = int (*)(const Words&, std::ostream&, std::ostream&);

const std::string kData = TESSERA_TEST_DATA;

struct CommandCase {
  std::string flag;
  Words words, with;  // `with`: the whole command without the flag
};

/// The spellings that a help text lists, a list for each flag.
std::vector<Words> flags_in_help(Function function) {
  std::ostringstream help, err;
  EXPECT_EQ(function({"--help"}, help, err), 0);
  std::vector<Words> flags;
  std::istringstream lines(help.str());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    std::istringstream words(line);
    Words& names = flags.emplace_back();
    for (std::string word; words >> word && word.starts_with("--");) {
      if (word.ends_with(',')) word.pop_back();
      names.push_back(word);
    }
  }
  EXPECT_FALSE(flags.empty());
  return flags;
}

void expect_cases(Function function, const std::vector<CommandCase>& cases, const std::string& out,
                  const Words& unseen = {}) {
  tasks::SweptTask task(function, {}, out);
  for (const Words& names : flags_in_help(function)) {
    const auto is_name = [&](const std::string& flag) {
      return std::find(names.begin(), names.end(), flag) != names.end();
    };
    const auto own = std::find_if(cases.begin(), cases.end(), [&](const CommandCase& c) { return is_name(c.flag); });
    if (own == cases.end()) {
      EXPECT_TRUE(std::any_of(unseen.begin(), unseen.end(), is_name)) << names[0] << " has no case: add a row here";
      continue;
    }
    Words flags = own->with;
    flags.push_back(own->flag);
    flags.insert(flags.end(), own->words.begin(), own->words.end());
    EXPECT_TRUE(task.run(flags) != task.run(own->with))
        << own->flag << " changes nothing: " << task.run(flags).substr(0, 300);
  }
}

class CommandFlags : public testing::Test {
 protected:
  CommandFlags() {
    tasks::make_model(kData + "/tiny_chat", in("model"));
    tasks::make_model(kData + "/tiny_chat", in("other"), "1");
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  void make_adapter() {
    std::ostringstream quiet;
    ASSERT_EQ(tasks::sft({"--model", in("model"), "--dataset_name", kData + "/tiny_chat", "--dataset_cache_dir",
                          in("cache"), "--output_dir", in("adapter"), "--use_peft_lora", "--max_steps", "1",
                          "--per_device_train_batch_size", "2", "--max_length", "32", "--learning_rate", "0.1"},
                         quiet, quiet),
              0);
    std::filesystem::create_directories(in("bare"));
    std::filesystem::copy(in("adapter/adapter_model.safetensors"), in("bare"));
  }
  test::TempFolder folder_{"command_flags"};
  const Words kPacked = {"--type", "nf4"};
};

TEST_F(CommandFlags, OfMergeAndExport) {
  make_adapter();
  const Words merge = {"--adapter_name_or_path", in("adapter"), "--output_dir", in("out")};
  expect_cases(tasks::merge,
               {{"--model_name_or_path", {in("other")}, merge},
                {"--adapter_name_or_path", {in("nowhere")}, merge},
                {"--output_dir", {in("elsewhere")}, merge},
                {"--overwrite_output_dir", {}, {"--adapter", in("adapter"), "--output_dir", in("model")}},
                {"--dtype", {"bfloat16"}, merge},
                {"--type", {"fp4"}, merge},
                {"--double_quant", {}, merge + kPacked},
                {"--bnb_4bit_quant_storage", {"bfloat16"}, merge + kPacked},
                {"--llm_int8_threshold", {"5"}, merge + Words{"--type", "int8"}},
                {"--device", {"cuda"}, merge},
                {"--skip_modules", {"q_proj"}, merge + kPacked}},
               in("out"));
  tasks::make_model(kData + "/tiny_chat", in("again"));
  expect_cases(tasks::export_checkpoint,
               {{"--model_name_or_path", {in("nowhere")}, {in("again"), in("out")}},
                {"--adapter_name_or_path", {in("adapter")}, {in("bare"), in("out")}},
                {"--merge", {}, {in("adapter"), in("out")}},
                {"--overwrite_output_dir", {}, {in("other"), in("again")}},
                {"--dtype", {"bfloat16"}, {in("other"), in("out")}},
                {"--gguf", {"q8_0"}, {in("other"), in("out/m.gguf")}},
                {"--type", {"fp4"}, {in("other"), in("out")}},
                {"--double_quant", {}, Words{in("other"), in("out")} + kPacked},
                {"--bnb_4bit_quant_storage", {"bfloat16"}, Words{in("other"), in("out")} + kPacked},
                {"--llm_int8_threshold", {"5"}, {in("other"), in("out"), "--type", "int8"}},
                {"--device", {"cuda"}, Words{in("other"), in("out")} + kPacked},
                {"--skip_modules", {"q_proj"}, Words{in("other"), in("out")} + kPacked}},
               in("out"));
}

TEST_F(CommandFlags, OfCombine) {
  const std::string adapters = kData + "/goldens/J_peft/combine/adapters/";
  const Words combine = {"--adapter",    adapters + "first", adapters + "second", "--weights", "0.5,0.4",
                         "--output_dir", in("out")};
  const Words ties = combine + Words{"--combination_type", "ties", "--density", "0.5"},
              dare = combine + Words{"--combination_type", "dare_linear", "--density", "0.5"};
  std::filesystem::create_directories(in("full"));
  std::filesystem::copy(adapters + "first", in("full"));
  expect_cases(
      tasks::combine,
      {{"--adapter", {adapters + "nowhere"}, combine},
       {"--weights", {"1"}, combine},
       {"--combination_type", {"cat"}, combine},
       {"--svd_rank", {"3"}, combine},
       {"--svd_clamp", {"0.9"}, combine},
       {"--density", {"0.3"}, ties},
       {"--majority_sign_method", {"frequency"}, ties},
       {"--seed", {"3"}, dare},
       {"--base_model_name_or_path", {"other"}, combine},
       {"--output_dir", {in("elsewhere")}, combine},
       {"--overwrite_output_dir", {}, {"--adapter", adapters + "first", "--weights", "1", "--output_dir", in("full")}}},
      in("out"));
}

TEST_F(CommandFlags, ACombinationThatFailsLeavesNoFolder) {
  std::ostringstream out, err;
  EXPECT_THROW(
      tasks::combine({"--adapter", in("model"), "--weights", "1", "--output_dir", in("above/combined")}, out, err),
      ConfigError);
  EXPECT_FALSE(std::filesystem::exists(in("above")));
}

TEST_F(CommandFlags, OfQuantize) {
  const Words quantize = {in("model"), in("out")};
  expect_cases(tasks::quantize,
               {{"--type", {"fp4"}, quantize},
                {"--double_quant", {}, quantize},
                {"--bnb_4bit_quant_storage", {"bfloat16"}, quantize},
                {"--dtype", {"bfloat16"}, quantize},
                {"--llm_int8_threshold", {"5"}, {in("model"), in("out"), "--type", "int8"}},
                {"--skip_modules", {"q_proj"}, quantize},
                {"--overwrite_output_dir", {}, {in("model"), in("other")}}},
               in("out"));
}

TEST_F(CommandFlags, OfInspectAndInitModel) {
  const Words inspect = {in("model")};
  expect_cases(tasks::inspect, {{"--json", {}, inspect}, {"--tensors", {}, inspect}}, in("out"), {"--checksums"});
  const Words init = {kData + "/tiny_chat", in("out")};
  expect_cases(tasks::init_model,
               {{"--seed", {"7"}, init},
                {"--overwrite", {}, {kData + "/tiny_chat", in("other")}},
                {"--dtype", {"bfloat16"}, init}},
               in("out"));
}

TEST_F(CommandFlags, OfVerify) {
  const Words verify = {kData + "/goldens/A_models/gpt2"};
  expect_cases(
      verify::verify,
      {{"--logits_tolerance", {"1e-30"}, verify},
       {"--grad_tolerance", {"1e-30"}, verify},
       {"--tokenizer", {kData + "/tokenizers/reference/chatml/tokenizer.json"}, {kData + "/goldens/K_preference/prep"}},
       {"--adapter", {"first=" + kData + "/goldens/J_peft/combine/adapters/first"}, verify},
       {"--device", {"cuda"}, verify}},
      in("out"), {"--sharded", "--gather"});
}

TEST_F(CommandFlags, OfEstimate) {
  const Words estimate = {in("model")};
  const Words rates = {"--flops_per_rank", "100GFLOP/s", "--memory_rate_per_rank", "10GB/s"};
  const Words hosts = {in("model"), "--hosts", "2", "--link", "1GB/s"};
  expect_cases(cli::estimate_command,
               {{"--dtypes", {"int8"}, estimate},
                {"--num_processes", {"4"}, estimate},
                {"--mixed_precision", {"bf16"}, estimate},
                {"--peft_type", {"IA3"}, estimate},
                {"--lora_r", {"64"}, estimate},
                {"--lora_target_modules", {"q_proj"}, estimate},
                {"--feedforward_modules", {"down_proj"}, {in("model"), "--peft_type", "IA3"}},
                {"--num_virtual_tokens", {"3"}, {in("model"), "--peft_type", "PROMPT_TUNING"}},
                {"--num_machines", {"2"}, estimate},
                {"--ranks_per_host", {"4"}, estimate},
                {"--link", {"2GB/s"}, hosts + rates},
                {"--latency", {"5ms"}, hosts + rates},
                {"--flops_per_rank", {"1TFLOP/s"}, hosts + rates},
                {"--memory_rate_per_rank", {"1GB/s"}, hosts + rates},
                {"--gradient_accumulation_steps", {"4"}, hosts + rates},
                {"--sync_each_batch", {}, hosts + rates + Words{"--gradient_accumulation_steps", "4"}},
                {"--optim", {"adamw_8bit"}, estimate},
                {"--optim_args", {"rank=2"}, {in("model"), "--optim", "galore_adamw"}},
                {"--optim_target_modules", {"q_proj"}, {in("model"), "--optim", "galore_adamw"}},
                {"--per_device_train_batch_size", {"2"}, estimate},
                {"--max_seq_length", {"64"}, estimate},
                {"--max_target_length", {"64"}, {kData + "/goldens/A_models/t5_v1_0"}},
                {"--gradient_checkpointing", {}, estimate},
                {"--load_in_4bit", {}, estimate},
                {"--use_nested_quant", {}, {in("model"), "--load_in_4bit"}},
                {"--load_in_8bit", {}, estimate},
                {"--max_memory", {"1MB"}, estimate},
                {"--peft_args", {"r=3"}, {in("model"), "--peft_type", "LOHA"}},
                {"--device", {"cuda"}, estimate},
                {"--fsdp_offload_params", {"true"}, {in("model"), "--device", "cuda"}},
                {"--device_memory", {"1MB"}, {in("model"), "--device", "cuda"}},
                {"--use_peft_lora", {}, estimate},
                {"--use_peft", {}, estimate},
                {"--library_name", {"transformers"}, estimate},
                {"--trust_remote_code", {}, estimate}},
               in("out"));
}

/// A command with `input` as its standard input.
int run_over(Function function, std::string_view input, const Words& args, std::ostream& out, std::ostream& err) {
  char name[] = "/tmp/command_input_XXXXXX";
  const int file = ::mkstemp(name), before = ::dup(STDIN_FILENO);
  ::unlink(name);
  EXPECT_EQ(::write(file, input.data(), input.size()), static_cast<ssize_t>(input.size()));
  ::lseek(file, 0, SEEK_SET);
  ::dup2(file, STDIN_FILENO);
  const int code = function(args, out, err);
  ::dup2(before, STDIN_FILENO);
  ::close(before);
  ::close(file);
  return code;
}
int tokenize_a_row(const Words& args, std::ostream& out, std::ostream& err) {
  return run_over(cli::tokenize_command, "\"one and one\"\n", args, out, err);
}
int chat_a_line(const Words& args, std::ostream& out, std::ostream& err) {
  return run_over(tasks::chat, "What is a pear?\n", args, out, err);
}

TEST_F(CommandFlags, OfChat) {
  make_adapter();
  std::filesystem::copy(kData + "/tiny_chat", in("config"));
  auto config = nlohmann::json::parse(read_file(in("config/config.json")));
  config["initializer_range"] = 0.5;  // so that what comes depends on what was before
  write_file_atomically(in("config/config.json"), config.dump());
  tasks::make_model(in("config"), in("vivid"));
  const Words chat = {"--model", in("vivid"), "--max_new_tokens", "8"}, drawn = chat + Words{"--do_sample"},
              many = drawn + Words{"--max_new_tokens", "400"};
  std::string bytes = "0";  // ids of which some come
  for (int id = 1; id < 128; ++id) bytes += "," + std::to_string(id);
  expect_cases(chat_a_line,
               {{"--model", {in("other")}, {"--max_new_tokens", "8"}},
                {"--adapter", {in("adapter")}, chat},
                {"--tokenizer", {in("nowhere")}, chat},
                {"--system", {"Be brief."}, chat},
                {"--chat_template", {"zephyr"}, chat},
                {"--dtype", {"bfloat16"}, many},
                {"--skip_special_tokens", {"false"}, many},
                {"--device", {"cuda"}, chat},
                {"--max_new_tokens", {"3"}, chat},
                {"--min_new_tokens", {"200"}, many},
                {"--do_sample", {}, chat},
                {"--temperature", {"9"}, drawn},
                {"--top_k", {"1"}, drawn},
                {"--top_p", {"0.01"}, drawn},
                {"--min_p", {"0.99"}, drawn},
                {"--typical_p", {"0.01"}, drawn + Words{"--temperature", "9"}},
                {"--repetition_penalty", {"50"}, chat},
                {"--no_repeat_ngram_size", {"1"}, chat},
                {"--max_length", {"20"}, {"--model", in("vivid")}},
                {"--epsilon_cutoff", {"0.9"}, drawn + Words{"--temperature", "9"}},
                {"--eos_token_id", {bytes}, chat},
                {"--bad_words_ids", {"[[" + std::regex_replace(bytes, std::regex(","), "],[") + "]]"}, chat},
                {"--stop_strings", {"."}, chat},
                {"--num_beam_groups", {"2"}, chat},
                {"--diversity_penalty", {"1"}, chat},
                {"--penalty_alpha", {"0.6"}, chat},
                {"--guidance_scale", {"2"}, chat},
                {"--encoder_no_repeat_ngram_size", {"2"}, chat},
                {"--encoder_repetition_penalty", {"2"}, chat},
                {"--force_words_ids", {"[[5]]"}, chat},
                {"--sequence_bias", {"[[[5], 2.0]]"}, chat},
                {"--assistant_model", {in("other")}, chat},
                {"--cache_implementation", {"static"}, chat},
                {"--seed", {"5"}, drawn}},
               in("out"), {"--renormalize_logits"});
}

TEST_F(CommandFlags, OfTokenize) {
  const Words tokenize = {"--tokenizer", kData + "/tokenizers/reference/bert"};
  expect_cases(tokenize_a_row,
               {{"--tokenizer", {kData + "/tiny_chat"}, tokenize},
                {"--add_special_tokens", {"false"}, tokenize},
                {"--text", {"other"}, tokenize}},
               in("out"));
}

TEST_F(CommandFlags, OfRender) {
  const std::string row = R"({"messages": [{"role": "user", "content": "hi"}]})",
                    rows = tasks::write_lines(in("rows.jsonl"), {row}),
                    more = tasks::write_lines(in("more.jsonl"), {row, row}),
                    shows = tasks::write_lines(in("eos.jinja"), {"{{ eos_token }}"});
  const Words render = {"--template", shows, "--input", rows};
  const auto over = [&](const std::string& file, const std::string& line, const Words& more_words = {}) {
    return Words{"--tokenizer", kData + "/tiny_chat", "--input", tasks::write_lines(in(file), {line})} + more_words;
  };
  const auto text = over("text.jsonl", R"({"text": "one", "body": "two"})");
  const Words with_ends = {"--tokenizer", kData + "/tokenizers/reference/bert", "--input", in("text.jsonl")};
  const auto pair = over("pair.jsonl", R"({"prompt": "one", "completion": "two"})");
  const auto chat = over("chat.jsonl", row, {"--task", "sft", "--template", "chatml"});
  const auto sharegpt = over("sharegpt.jsonl", R"({"conversations": [{"from": "human", "value": "hi"}]})",
                             {"--task", "sft", "--template", "chatml"});
  expect_cases(tasks::render,
               {{"--tokenizer", {kData + "/tiny_chat"}, render},
                {"--template", {"chatml"}, render},
                {"--template_name", {"other"}, {"--tokenizer", kData + "/tiny_chat", "--input", rows}},
                {"--input", {more}, render},
                {"--task", {"kto"}, pair},
                {"--dataset_text_field", {"body"}, text},
                {"--add_special_tokens", {"false"}, with_ends},
                {"--append_concat_token", {"true"}, chat},
                {"--standardize_roles", {"true"}, sharegpt},
                {"--completion_only_loss", {"false"}, pair},
                {"--assistant_only_loss", {"true"}, chat}},
               in("out"));
}

int config_default(const Words& args, std::ostream& out, std::ostream& err) {
  Words words = {"default"};
  words.insert(words.end(), args.begin(), args.end());
  return cli::config_command(words, out, err);
}

TEST_F(CommandFlags, OfConfig) {
  const Words file = {"--config_file", in("out/c.yaml")};
  const auto with = [&](Words words) {
    words.insert(words.begin(), file.begin(), file.end());
    return words;
  };
  const Words two = with({"--num_machines", "2", "--num_processes", "2", "--main_process_ip", "10.0.0.1"});
  expect_cases(config_default,
               {{"--config_file", {in("out/other.yaml")}, file},
                {"--num_processes", {"7"}, file},
                {"--num_machines", {"1"}, two},
                {"--machine_rank", {"1"}, two},
                {"--main_process_ip", {"10.0.0.2"}, two},
                {"--main_process_port", {"29501"}, file},
                {"--same_network", {"false"}, file},
                {"--rdzv_backend", {"c10d"}, file},
                {"--cpu", {}, file},
                {"--enable_cpu_affinity", {}, file},
                {"--debug", {}, file},
                {"--mixed_precision", {"bf16"}, file},
                {"--main_training_function", {"train"}, file},
                {"--distributed_type", {"MULTI_CPU"}, file},
                {"--compute_environment", {"ELSEWHERE"}, file},
                {"--dynamo_backend", {"inductor"}, file},
                {"--use_fsdp", {"false"}, file},
                {"--fsdp_version", {"2"}, file},
                {"--fsdp_sharding_strategy", {"NO_SHARD"}, file},
                {"--fsdp_reshard_after_forward", {"false"}, with({"--fsdp_version", "2"})},
                {"--fsdp_auto_wrap_policy", {"NO_WRAP"}, file},
                {"--fsdp_transformer_layer_cls_to_wrap", {"T5Block"}, file},
                {"--fsdp_min_num_params", {"5"}, with({"--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"})},
                {"--fsdp_backward_prefetch", {"NO_PREFETCH"}, file},
                {"--fsdp_forward_prefetch", {"false"}, file},
                {"--fsdp_state_dict_type", {"SHARDED_STATE_DICT"}, file},
                {"--fsdp_offload_params", {}, file},
                {"--fsdp_offload_folder", {in("out")}, file},
                {"--fsdp_use_orig_params", {"false"}, file},
                {"--fsdp_cpu_ram_efficient_loading", {"false"}, file},
                {"--fsdp_sync_module_states", {"false"}, with({"--fsdp_cpu_ram_efficient_loading", "false"})},
                {"--fsdp_activation_checkpointing", {}, file},
                {"--fsdp_ignored_modules", {"lm_head"}, file},
                {"--fsdp_shard_group_size", {"1"}, with({"--fsdp_sharding_strategy", "HYBRID_SHARD"})}},
               in("out"), {"--gpu_ids"});  // of launches that use GPUs
}

TEST_F(CommandFlags, OfReportAndToFsdp2) {
  const std::string run = in("run");
  tasks::write_lines(run + "/metrics.jsonl", {R"({"loss": 2.5, "step": 1})"});
  expect_cases(cli::report_command, {{"--output", {in("out/page.html")}, {run}}}, in("out"));
  const std::string old = tasks::write_lines(
      in("old.yaml"), {"distributed_type: FSDP", "fsdp_config:", "  fsdp_sharding_strategy: FULL_SHARD"});
  const Words convert = {"--config_file", old, "--output_file", in("out/new.yaml")};
  expect_cases(cli::to_fsdp2_command,
               {{"--config_file", {in("nowhere.yaml")}, convert},
                {"--output_file", {in("out/other.yaml")}, convert},
                {"--overwrite", {}, {"--config_file", old, "--output_file", old}}},
               in("out"));
}

}  // namespace
}  // namespace tessera
