#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "decoder_flags.h"
#include "support/program.h"
#include "tasks/sft.h"
#include "tasks/sft_training.h"
#include "tessera/optim/factory.h"
#include "tessera/optim/schedule.h"
#include "train/report_to.h"

namespace tessera::tasks {
namespace {

using test::kTinyChat;

Words notes_of(const Words& args) {
  std::ostringstream quiet;
  return parse_sft(args, quiet)->notes;
}

std::string error_of(const Words& args) {
  try {
    (void)notes_of(args);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

class SftFlags : public testing::Test {
 protected:
  SftFlags() : folder_("sft_flags") {
    make_model(kTinyChat, in("model"));
    make_model(kTinyChat, in("other"), "1");
    make_experts(in("experts"), false);
    write_lines(in("text/train.jsonl"), {R"({"text": "one and one is two", "other": "two and two is four"})",
                                         R"({"text": "two and one is three", "other": "no more"})"});
    write_lines(in("pairs/train.jsonl"), {R"({"prompt": "one and one", "completion": " is two"})",
                                          R"({"prompt": "two and one", "completion": " is three"})"});
    write_lines(in("share/train.jsonl"), {R"({"conversations": [{"from": "human", "value": "one and one?"}, )"
                                          R"({"from": "gpt", "value": "two"}]})"});
    write_lines(in("chat.jinja"), {"{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"});
    auto tokenizer = nlohmann::json::parse(read_file(kTinyChat + "/tokenizer.json"));
    const nlohmann::json bos = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                         text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const nlohmann::json tokens = {
        {"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {256}}, {"tokens", {"<|endoftext|>"}}}}};
    tokenizer["post_processor"] = {
        {"type", "TemplateProcessing"}, {"single", {bos, text}}, {"pair", {bos, text}}, {"special_tokens", tokens}};
    write_lines(in("bos/tokenizer.json"), {tokenizer.dump()});
    write_lines(in("bos/tokenizer_config.json"), {read_file(kTinyChat + "/tokenizer_config.json")});
    write_lines(in("taken/model.safetensors"), {""});
    write_lines(in("peft.json"), {R"({"peft_type": "IA3"})"});
    write_lines(in("adapters.yaml"), {"one:", "two: {lora_r: 2}"});
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  Words base() const {
    return {"--model_name_or_path",
            in("model"),
            "--dataset_name",
            kTinyChat,
            "--dataset_cache_dir",
            in("cache"),
            "--output_dir",
            in("out"),
            "--max_seq_length",
            "64",
            "--max_steps",
            "2",
            "--per_device_train_batch_size",
            "4",
            "--learning_rate",
            "1e-2",
            "--logging_steps",
            "1",
            "--disable_tqdm",
            "--print_model",
            "false"};
  }
  Words text() const { return {"--dataset_name", in("text"), "--splits", "train"}; }

  Words text_with_bos() const {
    return {"--dataset_name", in("text"), "--splits", "train", "--tokenizer_name_or_path", in("bos")};
  }

  std::vector<FlagCase> data_cases() const {
    return {{"--dataset_name", text()},
            {"--splits", {"test"}},
            {"--dataset_train_split", {"test"}},
            {"--dataset_test_split", {"train"}},
            {"--datasets", {R"([{"path": ")" + kTinyChat + R"(", "split": "test"}])"}},
            {"--dataset_mixture", {R"({"datasets": [{"id": ")" + kTinyChat + R"(", "weight": 0.5}]})"}},
            {"--test_split_size", {"40"}, {"--datasets", R"([{"path": ")" + kTinyChat + R"("}])"}},
            {"--dataset_text_field", {"other"}, text()},
            {"--chat_template_format", {"chatml"}},
            {"--chat_template_path", {in("chat.jinja")}},
            {"--max_length", {"16"}},
            {"--packing", {}},
            {"--packing_strategy", {"wrapped"}, {"--packing"}},
            {"--eval_packing",
             {"true"},
             {"--eval_strategy", "steps", "--eval_steps", "1", "--packing_strategy", "wrapped"}},
            {"--add_special_tokens", {"false"}, text_with_bos()},
            {"--append_concat_token", {}},
            {"--standardize_roles", {}, {"--dataset_name", in("share"), "--splits", "train"}},
            {"--completion_only_loss", {"false"}, {"--dataset_name", in("pairs"), "--splits", "train"}},
            {"--assistant_only_loss", {}},
            {"--dataset_streaming", {}},
            {"--eos_token", {"<|im_start|>"}},
            {"--pad_token", {"<|im_end|>"}}};
  }

  test::TempFolder folder_;
};

const std::vector<Unseen> kUnseen = {
    {"--padding_free", "the shape of batches"},
    {"--per_device_eval_batch_size", "time and memory"},
};

TEST_F(SftFlags, EachChangesSomethingOrIsRefusedOrSaysThatItDoesNot) {
  SftOptions options;
  const config::OptionTable table = sft_table(options);
  SweptTask task(sft, base(), in("out"));
  const auto path = [&](const std::string& name) { return in(name); };
  const std::vector<FlagCase> own = {
      {"--loss_type", {"dft"}},
      {"--label_smoothing_factor", {"0.1"}},
      {"--router_aux_loss_coef", {"0.5"}, {"--model_name_or_path", in("experts")}},
      {"--adapters", {in("adapters.yaml")}, {"--use_peft_lora"}},
      {"--metric_for_best_model", {"mean_token_accuracy"}, kBest},
      {"--eval_generate", {"1"}, kEvaluated},
      {"--eval_generate_max_new_tokens", {"3"}, {"--eval_steps", "1", "--eval_generate", "1"}}};
  const auto cases =
      together(own, {model_cases(path), data_cases(), training_cases(path), interval_cases(path), kUploadCases});
  sweep(table, task, notes_of, cases, together(kUnseen, {kUnseenOfDecoders}));
}

TEST_F(SftFlags, OfTheReferencesScriptsAreAllKnown) {
  SftOptions options;
  expect_all_known(sft_table(options), "sft");
}

TEST_F(SftFlags, EverythingWrongIsSaidAtOnceAndBeforeAnythingIsLoaded) {
  const std::string error =
      error_of({"--model_name_or_path", in("nowhere"), "--optim", "adamw_trch", "--lr_scheduler_type", "cosin",
                "--learnin_rate", "1", "--bf16", "--fp16", "--lora_dropout", "2", "--eval_stategy=no",
                "--per_device_train_batch_size", "many", "--use_8bit_quantization", "--early_stopping_patience", "1"});
  for (const char* part :
       {"10 problems", "--dataset_name is required", "unknown optimizer 'adamw_trch' (did you mean 'adamw_torch'?)",
        "unknown schedule 'cosin' (did you mean 'cosine'?)", "unknown flag --learnin_rate (did you mean",
        "--bf16 and --fp16 exclude each other", "--lora_dropout must be in [0, 1)", "unknown flag --eval_stategy",
        "--per_device_train_batch_size expects an integer, found 'many'",
        "--use_8bit_quantization packs the weights, which then do not train", "need an --eval_strategy"})
    EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
  EXPECT_EQ(error_of({"--model", "m", "--dataset_name", "d", "--optim_args", "x=1", "--optim", "sgd"}).substr(0, 37),
            "optim_args: optimizer 'sgd' has no ar");
}

TEST_F(SftFlags, StepsAreWholeNumbersOrPartsOfAllAsInTransformers) {
  const auto refusal = [&](const Words& flags) {
    Words all = {"--model", "m", "--dataset_name", "d", "--eval_strategy", "steps", "--save_strategy", "steps"};
    all.insert(all.end(), flags.begin(), flags.end());
    return error_of(all);
  };
  for (const std::string flag : {"--logging_steps", "--eval_steps", "--save_steps"}) {
    EXPECT_EQ(refusal({flag, "2.5"}), flag + " above 1 counts steps and must be whole, found 2.5");
    EXPECT_EQ(refusal({flag, "0"}), flag + " must be positive");
    EXPECT_EQ(refusal({flag, "1.0"}), "no error");
    EXPECT_EQ(refusal({flag, "0.3"}), "no error");
  }
  const auto best = [&](const char* eval_steps, const char* save_steps) {
    return refusal({"--load_best_model_at_end", "--eval_steps", eval_steps, "--save_steps", save_steps});
  };
  EXPECT_EQ(best("0.1", "0.3"), "no error");  // whose remainder is no zero as doubles
  EXPECT_EQ(best("2", "6"), "no error");
  for (const auto& [eval_steps, save_steps] : {std::pair("0.2", "0.3"), std::pair("2", "3"), std::pair("2", "0.5")})
    EXPECT_EQ(best(eval_steps, save_steps),
              "--load_best_model_at_end needs --save_steps to be a multiple of --eval_steps");
}

// As transformers: without evaluations the rate would never fall.
TEST_F(SftFlags, APlateauIsSeenByEvaluations) {
  for (const std::string schedule : {"reduce_lr_on_plateau", "ReduceLROnPlateau"}) {
    Words flags = {"--model", "m", "--dataset_name", "d", "--lr_scheduler_type", schedule};
    EXPECT_EQ(error_of(flags), "--lr_scheduler_type " + schedule +
                                   " lowers the rate where evaluations stop improving: it needs an --eval_strategy "
                                   "(steps, epoch)");
    flags.insert(flags.end(), {"--eval_strategy", "epoch"});
    EXPECT_EQ(error_of(flags), "no error");
  }
}

// Without a second split Trainer ignores --eval_steps, and refuses what asks for evaluations.
TEST_F(SftFlags, OnlyWhatAsksForEvaluationsNeedsASecondSplit) {
  SweptTask task(sft, base(), in("out"));
  const auto run = [&](Words flags) {
    flags.insert(flags.end(), {"--dataset_name", in("pairs")});
    return task.run(flags);
  };
  EXPECT_NE(run({"--eval_steps", "1"}).find("there will be no evaluation"), std::string::npos);
  EXPECT_EQ(run({"--eval_steps", "1"}).find("'eval_loss'"), std::string::npos);
  const std::vector<std::pair<std::string, Words>> asking = {
      {"--eval_strategy", {"--eval_strategy", "steps"}},
      {"--do_eval", {"--do_eval"}},
      {"--eval_on_start", {"--eval_on_start"}},
      {"--load_best_model_at_end", kBest},
      {"--save_strategy best", {"--eval_steps", "1", "--save_strategy", "best"}},
      {"--eval_generate", {"--eval_steps", "1", "--eval_generate", "1"}},
      {"--do_train false", {"--do_train", "false"}}};
  for (const auto& [flag, flags] : asking) {
    const std::string says = flag + " asks for evaluations, but '" + in("pairs") + "' has no second split (--splits";
    EXPECT_NE(run(flags).find(says), std::string::npos) << run(flags);
  }
  const std::string remedy = "--datasets '[{\"path\": \"" + in("pairs") + "\"}]' --test_split_size 0.1";
  EXPECT_NE(run({"--do_eval"}).find(remedy), std::string::npos) << run({"--do_eval"});
}

// As Trainer: no shell expands what stands in a file of flags.
TEST_F(SftFlags, TheOutputFolderMayBeginWithATilde) {
  std::ostringstream quiet;
  const auto options = parse_sft({"--model", in("model"), "--dataset_name", kTinyChat, "--output_dir", "~/out"}, quiet);
  EXPECT_EQ(options->training.output_dir, expanded_path("~/out"));
  EXPECT_EQ(options->training.output_dir.front(), '/');
}

// What evaluations give is known before anything is loaded, so a name that is not among it is refused then.
TEST_F(SftFlags, TheMetricForTheBestModelIsOneOfThoseThatEvaluationsGive) {
  const Words nowhere = {"--model", in("nowhere"), "--dataset_name", in("nowhere"), "--metric_for_best_model"};
  const auto refusal = [&](const Words& flags) {
    Words all = nowhere;
    all.insert(all.end(), flags.begin(), flags.end());
    return error_of(all);
  };
  EXPECT_NE(refusal({"acuracy"}).find("--metric_for_best_model eval_acuracy is not measured"), std::string::npos)
      << refusal({"acuracy"});
  EXPECT_NE(refusal({"perplexity", "--loss_type", "dft"}).find("is not measured"), std::string::npos);
  EXPECT_EQ(refusal({"perplexity"}), "no error");
  SweptTask task(sft, base(), in("out"));
  for (const char* loss : {"nll", "dft"}) {
    train::TrainingArguments arguments;
    arguments.token_loss.kind = std::string(loss) == "dft" ? nn::TokenLoss::Kind::kDft : nn::TokenLoss::Kind::kNll;
    const std::string seen = task.run({"--loss_type", loss, "--eval_strategy", "steps", "--eval_steps", "2"});
    const auto begin = seen.find("{'eval_");
    ASSERT_NE(begin, std::string::npos) << seen;
    const std::string row = seen.substr(begin, seen.find('}', begin) - begin);
    std::string named;
    for (const auto& name : evaluation_names(arguments)) named += (named.empty() ? "{'" : ", '") + name + "': ";
    EXPECT_EQ(std::regex_replace(row, std::regex("': [^,]*"), "': "), named + ", 'epoch': ");
  }
}

// TRL asks any mixture of experts for its router's logits; a weight of 0 alone leaves their balance out.
TEST_F(SftFlags, ExpertsAreBalancedAsInTrlWhateverOutputRouterLogitsSays) {
  make_experts(in("with_logits"), true);
  const auto losses = [&](const std::string& model, const Words& flags) {
    std::filesystem::remove_all(in("out"));
    Words all = base();
    all.insert(all.end(), {"--model_name_or_path", in(model), "--eval_strategy", "steps", "--eval_steps", "1"});
    all.insert(all.end(), flags.begin(), flags.end());
    std::ostringstream quiet;
    EXPECT_EQ(sft(all, quiet, quiet), 0) << quiet.str();
    std::istringstream rows(read_file(in("out/metrics.jsonl")));
    std::map<std::string, double> first;  // of training, and of the evaluation after it
    for (std::string line; std::getline(rows, line);) {
      const auto row = nlohmann::json::parse(line);
      for (const char* key : {"train_loss_exact", "eval_loss"})
        if (row.contains(key)) first.try_emplace(key, row.at(key).get<double>());
    }
    return first;
  };
  const auto stored = losses("experts", {}), asked = losses("with_logits", {});
  const auto none = losses("with_logits", {"--router_aux_loss_coef", "0"}),
             twice = losses("experts", {"--router_aux_loss_coef", "0.2"});
  EXPECT_EQ(stored, asked);
  // Two of four experts for each token: a balance of at least 2, which training has hardly begun to change.
  const double balance = (stored.at("train_loss_exact") - none.at("train_loss_exact")) / 0.1;
  EXPECT_GT(balance, 1.9);
  EXPECT_LT(balance, 4);
  EXPECT_NEAR(twice.at("train_loss_exact") - none.at("train_loss_exact"), 0.2 * balance, 1e-5);
  EXPECT_GT(stored.at("eval_loss"), none.at("eval_loss") + 0.1);
  std::ostringstream quiet;
  std::filesystem::remove_all(in("out"));
  Words dense = base();
  dense.insert(dense.end(), {"--router_aux_loss_coef", "0.1"});
  try {
    (void)sft(dense, quiet, quiet);
    FAIL() << "a dense model has no balance";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("this LlamaForCausalLM has none"), std::string::npos) << e.what();
  }
}

TEST_F(SftFlags, TheDtypeOfLoadingAgreesWithWhatComputes) {
  const auto told = [](const Words& flags) {
    Words all = {"--model", "m", "--dataset_name", "d"};
    all.insert(all.end(), flags.begin(), flags.end());
    try {
      const Words notes = notes_of(all);
      return notes.empty() ? std::string() : notes[0];
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(told({"--dtype", "float32"}), "");
  EXPECT_EQ(told({"--dtype", "bfloat16", "--bf16"}),
            "--dtype bfloat16 has no effect: --bf16 says it; masters stay float32");
  EXPECT_EQ(told({"--torch_dtype", "auto", "--bf16"}).substr(0, 28), "--dtype auto has no effect: ");
  EXPECT_NE(told({"--dtype", "bfloat16"}).find("add --bf16"), std::string::npos);
  EXPECT_NE(told({"--dtype", "bfloat16", "--fp16"}).find("add --bf16"), std::string::npos);
  EXPECT_NE(told({"--dtype", "float16"}).find("expects one of"), std::string::npos);
}

// torch's optimizers refuse these values.
TEST_F(SftFlags, TheOptimizersNumbersAreInTheirRanges) {
  const auto refusal = [](const std::string& flag, const std::string& value) {
    return error_of({"--model", "m", "--dataset_name", "d", flag, value});
  };
  for (const std::string flag : {"--adam_beta1", "--adam_beta2"}) {
    EXPECT_EQ(refusal(flag, "1.5"), flag + " must be in [0, 1), found 1.5");
    EXPECT_EQ(refusal(flag, "1"), flag + " must be in [0, 1), found 1");
    EXPECT_EQ(refusal(flag, "-0.1"), flag + " must be in [0, 1), found -0.1");
    EXPECT_EQ(refusal(flag, "0"), "no error");
  }
  for (const std::string flag : {"--adam_epsilon", "--weight_decay"}) {
    EXPECT_EQ(refusal(flag, "-0.1"), flag + " must not be negative, found -0.1");
    EXPECT_EQ(refusal(flag, "0"), "no error");
  }
}

// Help and completion list what the factories know; what they do not know is theirs to refuse.
TEST_F(SftFlags, NamesOfOptimizersSchedulesAndReportsAreListed) {
  std::ostringstream out, err;
  EXPECT_EQ(sft({"--help=json"}, out, err), 0);
  std::map<std::string, Words> choices;
  const auto help = nlohmann::json::parse(out.str());
  for (const auto& option : help.at("options"))
    for (const std::string name : option.at("names")) choices[name] = option.at("choices").get<Words>();
  EXPECT_EQ(choices.at("--optim"), optim::optimizer_names());
  EXPECT_EQ(choices.at("--lr_scheduler_type"), optim::schedule_names());
  EXPECT_EQ(choices.at("--report_to"), train::report_words());
  EXPECT_EQ(error_of({"--model", "m", "--dataset_name", "d", "--report_to", "jsonl:rows", "--lr_scheduler_type",
                      "torch:StepLR", "--lr_scheduler_kwargs", R"({"step_size": 1})"}),
            "no error");
}

TEST_F(SftFlags, LengthsMayBeNone) {
  for (const Words& flags : {Words{"--pad_to_multiple_of", "auto"},
                             {"--pad_to_multiple_of", "None"},
                             {"--pad_to_multiple_of=8"},
                             {"--max_length", "none"}}) {
    Words all = {"--model", "m", "--dataset_name", "d"};
    all.insert(all.end(), flags.begin(), flags.end());
    std::ostringstream quiet;
    const auto options = parse_sft(all, quiet);
    EXPECT_EQ(options->pad_to_multiple_of, flags[0].ends_with("8") ? 8 : 1);
    EXPECT_EQ(options->data.max_length, flags[0] == "--max_length" ? 0 : 512);
  }
}

TEST_F(SftFlags, WhatDoesNotCountIsSaid) {
  const Words basics = {"--model", "m", "--dataset_name", "d"};
  const auto notes = [&](Words flags) {
    flags.insert(flags.begin(), basics.begin(), basics.end());
    return notes_of(flags);
  };
  EXPECT_EQ(notes({"--lora_r", "8"}), Words{"--lora_r has no effect without --use_peft_lora"});
  EXPECT_EQ(notes({"--lora_r", "8", "--adapter_name_or_path", "a"}),
            Words{"--lora_r has no effect with --adapter_name_or_path a"});
  EXPECT_EQ(notes({"--per_device_eval_batch_size", "2"}),
            Words{"--per_device_eval_batch_size has no effect without --eval_strategy steps (or epoch) or "
                  "--eval_on_start or --do_train false"});
  EXPECT_EQ(notes({"--per_device_eval_batch_size", "2", "--do_eval", "true"}), Words{});
  EXPECT_EQ(notes({"--train_sampling_strategy", "group_by_length"}),
            Words{"--train_sampling_strategy group_by_length takes rows in random order, whatever their lengths"});
  for (const std::string optim : {"lomo", "adalomo"})  // to which Trainer passes a rate alone
    EXPECT_EQ(notes({"--weight_decay", "0.1", "--optim", optim}),
              Words{"--weight_decay has no effect with --optim " + optim});
  const Words galore = {"--optim", "galore_adamw", "--optim_target_modules", "all-linear"};
  const Words apollo = {"--optim", "apollo_adamw", "--optim_target_modules", "all-linear"};
  for (const std::string flag : {"--weight_decay", "--adam_beta1", "--adam_beta2", "--adam_epsilon"}) {
    const auto with = [&](Words flags) {
      flags.insert(flags.end(), {flag, "0.1"});
      return notes(flags);
    };
    EXPECT_EQ(with(galore), Words{flag + " has no effect with --optim galore_adamw"});
    EXPECT_EQ(with(apollo),
              flag == "--weight_decay" ? Words{flag + " has no effect with --optim apollo_adamw"} : Words{});
  }
  EXPECT_EQ(notes({"--warmup_steps", "2", "--lr_scheduler_type", "constant"}),
            Words{"--warmup_steps has no effect with --lr_scheduler_type constant"});
}

}  // namespace
}  // namespace tessera::tasks
