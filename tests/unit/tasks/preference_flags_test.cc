// The flags of the five commands that train on preferences, beside those of TRL 1.16's programs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "decoder_flags.h"
#include "support/program.h"
#include "tasks/preference.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;
using preference::Method;
using test::kTinyChat;
using test::operator+;

constexpr Method kMethods[] = {Method::kDpo, Method::kOrpo, Method::kCpo, Method::kKto, Method::kReward};

int run_command(Method method, const Words& args, std::ostream& out, std::ostream& err) {
  switch (method) {
    case Method::kDpo:
      return dpo(args, out, err);
    case Method::kOrpo:
      return orpo(args, out, err);
    case Method::kCpo:
      return cpo(args, out, err);
    case Method::kKto:
      return kto(args, out, err);
    case Method::kReward:
      return reward(args, out, err);
  }
  return 1;
}

Words notes_of_preference(Method method, const Words& args) {
  std::ostringstream quiet;
  return parse_preference(method, args, quiet)->notes;
}

class PreferenceFlags : public testing::TestWithParam<Method> {
 protected:
  PreferenceFlags() : folder_("preference_flags") {
    make_model(kTinyChat, in("model"));
    make_model(kTinyChat, in("other"), "1");
    write_lines(in("pairs/train.jsonl"), rows(12, "one", "two"));
    write_lines(in("pairs/test.jsonl"), rows(5, "two", "three"));
    write_lines(in("answers/train.jsonl"), labelled(12));
    write_lines(in("answers/test.jsonl"), labelled(5));
    write_lines(in("others/train.jsonl"), rows(12, "six", "ten"));
    write_lines(in("talks/train.jsonl"), conversations());
    write_lines(in("chat.jinja"), {"{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"});
    write_lines(in("taken/model.safetensors"), {""});
    write_lines(in("peft.json"), {R"({"peft_type": "IA3"})"});
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  static Words rows(int count, const std::string& good, const std::string& bad) {
    Words lines;
    for (int i = 0; i < count; ++i)
      lines.push_back(json({{"prompt", "what is " + std::to_string(i) + " and"},
                            {"chosen", " " + good + std::string(static_cast<std::size_t>(i % 3), '!')},
                            {"rejected", " " + bad + " or " + std::to_string(i * i)}})
                          .dump());
    return lines;
  }
  /// More good answers than bad ones.
  static Words labelled(int count) {
    Words lines;
    for (int i = 0; i < count; ++i)
      lines.push_back(json({{"prompt", "what is " + std::to_string(i) + " and"},
                            {"completion", i % 3 == 0 ? " three" : " one " + std::to_string(i)},
                            {"label", i % 3 != 0}})
                          .dump());
    return lines;
  }
  static Words conversations() {
    const auto says = [](const char* role, const std::string& text) {
      return json::array({{{"role", role}, {"content", text}}});
    };
    Words lines;
    for (int i = 0; i < 8; ++i)
      lines.push_back(json({{"prompt", says("user", "what is " + std::to_string(i))},
                            {"chosen", says("assistant", "a number")},
                            {"rejected", says("assistant", "a word")}})
                          .dump());
    return lines;
  }
  Words base() const {
    return {"--model_name_or_path",
            in("model"),
            "--dataset_name",
            in(GetParam() == Method::kKto ? "answers" : "pairs"),
            "--dataset_cache_dir",
            in("cache"),
            "--output_dir",
            in("out"),
            "--max_length",
            "48",
            "--max_steps",
            "2",
            "--per_device_train_batch_size",
            "4",
            "--learning_rate",
            "1e-2",
            "--logging_steps",
            "1",
            "--bf16",
            "false",
            "--gradient_checkpointing",
            "false",
            "--disable_tqdm",
            "--print_model",
            "false"};
  }
  Words talks() const { return {"--dataset_name", in("talks"), "--splits", "train"}; }

  std::vector<FlagCase> loss_cases(Method method) const {
    switch (method) {
      case Method::kDpo:
        return {{"--loss_type", {"ipo"}},
                {"--loss_weights", {"2"}},
                {"--beta", {"0.5"}},
                {"--label_smoothing", {"0.2"}, {"--loss_type", "robust"}},
                {"--ld_alpha", {"0.5"}},
                {"--use_weighting", {}},
                {"--discopop_tau", {"0.5"}, {"--loss_type", "discopop"}},
                {"--f_divergence_type", {"js_divergence"}},
                {"--f_alpha_divergence_coef", {"0.7"}, {"--f_divergence_type", "alpha_divergence"}},
                {"--truncation_mode", {"keep_end"}, {"--max_length", "20"}},
                {"--ref_model", {in("other")}},
                {"--metric_for_best_model", {"rewards/margins"}, kBest}};
      case Method::kOrpo:
        return {{"--beta", {"0.5"}}, {"--metric_for_best_model", {"rewards/margins"}, kBest}};
      case Method::kCpo:
        return {{"--loss_type", {"hinge"}},
                {"--beta", {"0.5"}},
                {"--label_smoothing", {"0.2"}},
                {"--cpo_alpha", {"0.5"}},
                {"--simpo_gamma", {"1"}, {"--loss_type", "simpo"}},
                {"--alpha", {"0.5"}},
                {"--metric_for_best_model", {"rewards/margins"}, kBest}};
      case Method::kKto:
        return {{"--loss_type", {"apo_zero_unpaired"}},
                {"--beta", {"0.5"}},
                {"--desirable_weight", {"0.5"}},
                {"--undesirable_weight", {"0.5"}},
                {"--train_sampling_strategy", {"random"}},
                {"--ref_model", {in("other")}},
                {"--seed", {"1"}, {"--loss_type", "apo_zero_unpaired", "--train_sampling_strategy", "random"}},
                {"--data_seed", {"1"}, {"--loss_type", "apo_zero_unpaired", "--train_sampling_strategy", "random"}},
                {"--metric_for_best_model", {"rewards/margins"}, kBest}};
      case Method::kReward:
        return {{"--center_rewards_coefficient", {"0.5"}},
                {"--metric_for_best_model", {"margin"}, kBest},
                {"--lora_modules_to_save", {"norm"}, kLora}};
    }
    return {};
  }
  std::vector<FlagCase> router_cases(Method method) const {
    if (method == Method::kReward) return {};
    return {{"--router_aux_loss_coef", {"0.5"}}};  // of a model without experts
  }
  std::vector<FlagCase> data_cases() const {
    return {{"--dataset_name", {in("others")}},
            {"--splits", {"test"}},
            {"--dataset_train_split", {"test"}},
            {"--dataset_test_split", {"train"}},
            {"--datasets", {R"([{"path": ")" + in("others") + R"("}])"}},
            {"--dataset_mixture", {R"({"datasets": [{"id": ")" + in("others") + R"("}]})"}},
            {"--test_split_size",
             {"4"},
             {"--datasets", R"([{"path": ")" + in(GetParam() == Method::kKto ? "answers" : "pairs") + R"("}])"}},
            {"--dataset_streaming", {}},
            {"--chat_template_format", {"chatml"}, talks()},
            {"--chat_template_path", {in("chat.jinja")}, talks()},
            {"--max_length", {"17"}},
            {"--dataloader_drop_last",
             {},
             {"--per_device_train_batch_size", "5", "--max_steps", "-1", "--num_train_epochs", "1"}},
            {"--per_device_eval_batch_size", {"2"}, kEvaluated},
            {"--eos_token", {"<|im_start|>"}},
            {"--pad_token", {"<|im_end|>"}},
            {"--disable_dropout", {"false"}, {"--use_peft_lora", "--lora_dropout", "0.5"}},
            {"--lora_dropout", {"0.5"}, {"--use_peft_lora", "--disable_dropout", "false"}}};
  }

  test::TempFolder folder_;
};

const std::vector<Unseen> kUnseenOfPreferences = {
    {"--precompute_ref_log_probs", "time: the same numbers before the first step"},
    {"--precompute_ref_batch_size", "time and memory"},
};

TEST_P(PreferenceFlags, EachChangesSomethingOrIsRefusedOrSaysThatItDoesNot) {
  const auto method = GetParam();
  PreferenceOptions options(method);
  const config::OptionTable table = preference_table(options);
  SweptTask task([method](const Words& a, std::ostream& o, std::ostream& e) { return run_command(method, a, o, e); },
                 base(), in("out"));
  const auto path = [&](const std::string& name) { return in(name); };
  const auto cases = together(loss_cases(method), {router_cases(method), data_cases(), model_cases(path),
                                                   training_cases(path), interval_cases(path), kUploadCases});
  sweep(
      table, task, [method](const Words& args) { return notes_of_preference(method, args); }, cases,
      together(kUnseenOfPreferences, {kUnseenOfDecoders}));
}

/// DPO and KTO always have it in TRL, ORPO and CPO where config.json asks for the router's logits.
TEST_P(PreferenceFlags, TheBalanceOfExpertsIsLeftOutOnRequestAlone) {
  const auto method = GetParam();
  if (method == Method::kReward) return;
  make_experts(in("experts"), false);
  make_experts(in("with_logits"), true);
  const auto trained = [&](bool output_router_logits, const Words& flags) -> std::string {
    const auto folder = in(output_router_logits ? "with_logits" : "experts");
    std::ostringstream quiet;
    try {
      const Words all = base() + Words{"--model_name_or_path", folder, "--overwrite_output_dir"};
      return std::to_string(run_command(method, all + flags, quiet, quiet));
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  const auto is_refused = [](const std::string& result) {
    return result.find("--router_aux_loss_coef 0 trains without it") != std::string::npos;
  };
  const auto stored = trained(false, {});
  EXPECT_EQ(is_refused(stored), method == Method::kDpo || method == Method::kKto) << stored;
  EXPECT_TRUE(is_refused(trained(true, {})));
  EXPECT_TRUE(is_refused(trained(false, {"--router_aux_loss_coef", "0.1"})));
  EXPECT_EQ(trained(true, {"--router_aux_loss_coef", "0"}), "0");
}

TEST_P(PreferenceFlags, OfTheReferencesScriptsAreAllKnown) {
  PreferenceOptions options(GetParam());
  expect_all_known(preference_table(options), name_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Commands, PreferenceFlags, testing::ValuesIn(kMethods),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// The first note, or the error, of a DPO command with `flags`.
std::string told(const Words& flags) {
  try {
    const auto notes = notes_of_preference(Method::kDpo, Words{"--model", "m", "--dataset_name", "d"} + flags);
    return notes.empty() ? std::string() : notes[0];
  } catch (const ConfigError& e) {
    return std::string(e.what());
  }
}

TEST(PreferenceFlagValues, TheDtypeOfLoadingAgreesWithWhatComputes) {
  EXPECT_EQ(told({"--dtype", "float32"}), "");
  EXPECT_EQ(told({"--dtype", "bfloat16"}),  // bf16 is on, as in TRL
            "--dtype bfloat16 has no effect: --bf16 says it; masters stay float32");
  EXPECT_NE(told({"--dtype", "bfloat16", "--bf16", "false"}).find("add --bf16"), std::string::npos);
  EXPECT_NE(told({"--dataset_streaming"}).find("say how many with --max_steps"), std::string::npos);
}

// The completions that estimate the divergence are those of neighbours in the file, in TRL, too.
TEST(PreferenceFlagValues, KtoTakesRowsInTheOrderOfTheFile) {
  const auto error = [](const Words& flags) -> std::string {
    try {
      (void)notes_of_preference(Method::kKto, Words{"--model", "m", "--dataset_name", "d"} + flags);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "none";
  };
  for (const std::string order : {"random", "group_by_length"}) {
    EXPECT_NE(error({"--train_sampling_strategy", order}).find("--train_sampling_strategy must be sequential"),
              std::string::npos)
        << order;
    EXPECT_EQ(error({"--train_sampling_strategy", order, "--loss_type", "apo_zero_unpaired"}), "none");
  }
  EXPECT_EQ(error({"--train_sampling_strategy", "sequential"}), "none");
}

TEST(PreferenceFlagValues, LossesThatTheDivergenceOrTheWeightsDoNotFitAreRefusedAsInTrl) {
  const std::set<std::string> of_differences = {"sigmoid",  "sigmoid_norm", "hinge",    "ipo",
                                                "exo_pair", "robust",       "discopop", "sft"};
  for (const auto& [loss, unused] : preference::dpo_losses()) {
    const Words flags = {"--loss_type", "sft," + loss, "--label_smoothing", "0.1"};
    const auto divergence = told(flags + Words{"--f_divergence_type", "js_divergence"});
    EXPECT_EQ(divergence.find("is not defined for --loss_type " + loss) == std::string::npos,
              of_differences.contains(loss))
        << divergence;
    const auto weights = told(flags + Words{"--use_weighting"});
    EXPECT_EQ(weights.find("is not defined for --loss_type " + loss) != std::string::npos, loss.starts_with("aot"))
        << weights;
    EXPECT_EQ(told(flags + Words{"--f_divergence_type", "reverse_kl"}).find("is not defined"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::tasks
