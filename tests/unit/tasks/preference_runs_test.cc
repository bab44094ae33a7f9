// Runs of preference training on threads: any number of ranks trains as one does, and a run goes on bit for bit, its
// reference included.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "flag_sweep.h"
#include "support/program.h"
#include "tasks/preference.h"
#include "tessera/comm/communicator.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;
using preference::Method;
using test::operator+;

constexpr int kGlobalBatch = 6;

/// What the launcher would have told the ranks.
class Strategy {
 public:
  explicit Strategy(const std::string& name) {
    ::setenv(kVariable, name.c_str(), 1);
    ::setenv(kWrap, "TRANSFORMER_BASED_WRAP", 1);
  }
  ~Strategy() {
    ::unsetenv(kVariable);
    ::unsetenv(kWrap);
  }
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

 private:
  static constexpr const char *kVariable = "FSDP_SHARDING_STRATEGY", *kWrap = "FSDP_AUTO_WRAP_POLICY";
};

struct RunCase {
  std::string name;
  Method method;
  int ranks;
  std::string strategy;
  Words flags;
  bool as_one_rank = true;  // false: what is computed depends on the rows of a rank
};

void PrintTo(const RunCase& c, std::ostream* out) {
  *out << c.name;
}

const Words kAdapter = {"--use_peft_lora", "--lora_r", "4", "--lora_dropout", "0"};
const Words kBf16 = {"--bf16", "true"};

const std::vector<RunCase> kRunCases = {
    {"dpo_full", Method::kDpo, 2, "FULL_SHARD", {}},
    {"dpo_full_of_one_rank", Method::kDpo, 1, "NO_SHARD", {"--loss_type", "ipo"}},
    {"dpo_full_bf16", Method::kDpo, 3, "SHARD_GRAD_OP", kBf16},
    {"dpo_full_copies", Method::kDpo, 2, "NO_SHARD", {"--loss_type", "sigmoid,sft", "--use_weighting"}},
    {"dpo_lora", Method::kDpo, 3, "FULL_SHARD", kAdapter},
    {"dpo_lora_bf16", Method::kDpo, 2, "SHARD_GRAD_OP", kAdapter + kBf16},
    {"dpo_lora_asked_before", Method::kDpo, 2, "FULL_SHARD", kAdapter + Words{"--precompute_ref_log_probs"}},
    {"dpo_lora_and_a_whole_module", Method::kDpo, 2, "FULL_SHARD", kAdapter + Words{"--lora_modules_to_save", "norm"}},
    {"dpo_lora_nf4", Method::kDpo, 3, "SHARD_GRAD_OP", kAdapter + Words{"--use_4bit_quantization"}},
    {"dpo_lora_nf4_bf16", Method::kDpo, 2, "FULL_SHARD", kAdapter + kBf16 + Words{"--use_4bit_quantization"}},
    {"dpo_pissa", Method::kDpo, 2, "FULL_SHARD", kAdapter + Words{"--init_lora_weights", "pissa"}},
    {"dpo_ia3",
     Method::kDpo,
     2,
     "NO_SHARD",
     {"--use_peft_lora", "--peft_type", "IA3", "--target_modules", "k_proj,down_proj"}},
    {"dpo_prompt",
     Method::kDpo,
     2,
     "FULL_SHARD",
     {"--use_peft_lora", "--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "2"}},
    {"dpo_noise_and_dropout",
     Method::kDpo,
     3,
     "FULL_SHARD",
     {"--use_peft_lora", "--lora_dropout", "0.2", "--disable_dropout", "false", "--neftune_noise_alpha", "5"}},
    {"dpo_accumulates", Method::kDpo, 2, "FULL_SHARD", {"--gradient_accumulation_steps", "2"}},
    {"kto_full", Method::kKto, 3, "FULL_SHARD", {}, false},
    {"kto_lora_bf16", Method::kKto, 2, "SHARD_GRAD_OP", kAdapter + kBf16, false},
    {"kto_apo_zero", Method::kKto, 2, "NO_SHARD", {"--loss_type", "apo_zero_unpaired"}},
    {"orpo_full", Method::kOrpo, 3, "SHARD_GRAD_OP", {}},
    {"orpo_lora_nf4", Method::kOrpo, 2, "FULL_SHARD", kAdapter + Words{"--use_4bit_quantization"}},
    {"cpo_full_bf16", Method::kCpo, 2, "FULL_SHARD", kBf16},
    {"cpo_simpo_lora", Method::kCpo, 3, "NO_SHARD", kAdapter + Words{"--loss_type", "simpo", "--cpo_alpha", "0"}},
    {"reward_full", Method::kReward, 2, "FULL_SHARD", {}},
    {"reward_lora_bf16", Method::kReward, 3, "SHARD_GRAD_OP", kAdapter + kBf16},
};

class PreferenceRuns : public testing::TestWithParam<RunCase> {
 protected:
  PreferenceRuns() : folder_("preference_runs") {
    make_model(test::kTinyChat, in("model"));
    Words pairs;
    for (int i = 0; i < 18; ++i)
      pairs.push_back(json({{"prompt", "what is " + std::to_string(i * i) + " and"},
                            {"chosen", " one" + std::string(static_cast<std::size_t>(i % 4), '!')},
                            {"rejected", " two or " + std::to_string(i)}})
                          .dump());
    write_lines(in("pairs/train.jsonl"), pairs);
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  /// The log rows of a run of four steps.
  json train(const RunCase& c, int ranks, const std::string& out, const Words& more = {}) const {
    Words flags = {"--model_name_or_path",
                   in("model"),
                   "--dataset_name",
                   in("pairs"),
                   "--splits",
                   "train",
                   "--dataset_cache_dir",
                   in("cache"),
                   "--output_dir",
                   in(out),
                   "--max_steps",
                   "4",
                   "--learning_rate",
                   "1e-2",
                   "--logging_steps",
                   "1",
                   "--bf16",
                   "false",
                   "--disable_tqdm",
                   "--print_model",
                   "false",
                   "--per_device_train_batch_size",
                   std::to_string(kGlobalBatch / ranks)};
    std::ostringstream quiet;
    const auto options = parse_preference(c.method, flags + c.flags + more, quiet);
    comm::run_threads(ranks, [&](const std::shared_ptr<comm::Communicator>& group) {
      std::ostringstream said, errors;
      EXPECT_TRUE(train_preferences(*options, group, said, errors));
    });
    json rows = json::array();
    std::ifstream file(in(out) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      auto row = json::parse(line);
      if (row.contains("train_loss_exact")) rows.push_back(row);
    }
    return rows;
  }
  std::string result(const std::string& out) const {
    const auto adapter = in(out) + "/adapter_model.safetensors";
    return read_file(std::filesystem::exists(adapter) ? adapter : in(out) + "/model.safetensors");
  }

  test::TempFolder folder_;
};

/// Without what the clock says.
json timeless(json row) {
  for (const char* name : {"step_seconds", "time", "tokens_per_second", "samples_per_second"}) row.erase(name);
  return row;
}

TEST_P(PreferenceRuns, AreThoseOfOneRankAndGoOnBitForBit) {
  const auto& c = GetParam();
  const Strategy strategy(c.strategy);
  const auto straight = train(c, c.ranks, "straight", {"--save_steps", "2"});
  ASSERT_EQ(straight.size(), 4U);
  const auto on = train(c, c.ranks, "on", {"--resume_from_checkpoint", in("straight/checkpoint-2")});
  ASSERT_EQ(on.size(), 2U);
  for (std::size_t i = 0; i < on.size(); ++i) EXPECT_EQ(timeless(on[i]), timeless(straight[i + 2])) << i;
  EXPECT_EQ(result("on"), result("straight"));
  if (c.method == Method::kDpo && c.flags.empty()) {
    EXPECT_GT(straight[3]["rewards/margins"].get<double>(), 0.1) << "the reference must stay where the run began";
  }
  if (c.ranks == 1 || !c.as_one_rank) return;
  const bool narrow = std::find(c.flags.begin(), c.flags.end(), "--bf16") != c.flags.end();
  const auto alone = train(c, 1, "alone");
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const double loss = alone[i]["train_loss_exact"];
    EXPECT_NEAR(straight[i]["train_loss_exact"], loss, (narrow ? 3e-2 : 1e-5 * (i + 1)) * std::max(1.0, loss)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Commands, PreferenceRuns, testing::ValuesIn(kRunCases),
                         [](const auto& info) { return info.param.name; });

using PreferenceForms = PreferenceRuns;

// TRL's padding_free, always: padding is not computed, so its length changes no bit.
TEST_F(PreferenceForms, PaddingChangesNothing) {
  const RunCase c{"padding", Method::kDpo, 2, "FULL_SHARD", kAdapter};
  (void)train(c, 2, "short");
  (void)train(c, 2, "long", {"--pad_to_multiple_of", "64"});
  EXPECT_EQ(result("short"), result("long"));
}

// The last step of a part of an epoch takes whole batches, too: at a rate of 0 the policy is the reference in each row.
TEST_F(PreferenceForms, TheReferenceIsAskedForAllRowsOfAPartOfAnEpoch) {
  const RunCase c{"part", Method::kDpo, 1, "NO_SHARD", {}};
  const auto rows = train(c, 1, "part",
                          {"--max_steps", "-1", "--num_train_epochs", "0.61", "--gradient_accumulation_steps", "4",
                           "--per_device_train_batch_size", "1", "--learning_rate", "0"});
  ASSERT_EQ(rows.size(), 4U);
  for (const auto& row : rows) EXPECT_NEAR(row["train_loss_exact"], std::log(2.0), 1e-6) << row;
}

TEST_F(PreferenceForms, EvaluationsCountTheirTokens) {
  write_lines(in("pairs/test.jsonl"), {read_file(in("pairs/train.jsonl"))});
  const RunCase c{"tokens", Method::kDpo, 2, "NO_SHARD", {"--splits", "train,test", "--eval_strategy", "steps"}};
  const auto rows = train(c, 2, "tokens", {"--max_steps", "3", "--eval_steps", "3"});  // an epoch of 18 rows
  std::ifstream file(in("tokens") + "/metrics.jsonl");
  double counted = 0;
  for (std::string line; std::getline(file, line);) counted = json::parse(line).value("eval_num_tokens", counted);
  EXPECT_GT(counted, 0);
  EXPECT_EQ(counted, rows.back()["num_tokens"]);
}

// An adapter that is gone on with is its own reference, as it was when the run began.
TEST_F(PreferenceForms, AnAdapterThatIsGoneOnWithIsItsOwnReference) {
  const RunCase first{"first", Method::kDpo, 2, "FULL_SHARD", kAdapter};
  (void)train(first, 2, "first");
  const RunCase second{"second", Method::kDpo, 2, "FULL_SHARD", {"--adapter_name_or_path", in("first")}};
  const auto straight = train(second, 2, "straight", {"--save_steps", "2"});
  EXPECT_NEAR(straight[0]["train_loss_exact"], std::log(2.0), 1e-6);
  EXPECT_EQ(straight[0]["rewards/margins"], 0);
  const auto on = train(second, 2, "on", {"--resume_from_checkpoint", in("straight/checkpoint-2")});
  ASSERT_EQ(on.size(), 2U);
  for (std::size_t i = 0; i < on.size(); ++i) EXPECT_EQ(timeless(on[i]), timeless(straight[i + 2])) << i;
  EXPECT_EQ(result("on"), result("straight"));
}

// KTO's advice, word for word TRL's, once, where rows are not balanced.
TEST_F(PreferenceForms, KtoSaysHowToWeighUnbalancedRows) {
  Words rows;
  for (int i = 0; i < 12; ++i)
    rows.push_back(json({{"prompt", "what is"}, {"completion", " " + std::to_string(i)}, {"label", i < 9}}).dump());
  write_lines(in("answers/train.jsonl"), rows);
  const auto said = [&](const Words& more) {
    std::ostringstream out, err;
    std::filesystem::remove_all(in("out"));
    EXPECT_EQ(kto(Words{"--model_name_or_path", in("model"), "--dataset_name", in("answers"), "--splits", "train",
                        "--dataset_cache_dir", in("cache"), "--output_dir", in("out"), "--max_steps", "1", "--bf16",
                        "false", "--disable_tqdm", "--print_model", "false"} +
                      more,
                  out, err),
              0);
    return out.str();
  };
  const auto advice = said({});
  EXPECT_NE(advice.find("EITHER desirable_weight in [0.33, 0.44] or undesirable_weight in [2.26, 3.0] (but NOT BOTH)"),
            std::string::npos)
      << advice;
  EXPECT_EQ(said({"--undesirable_weight", "2.5"}).find("NOT BOTH"), std::string::npos);
}

}  // namespace
}  // namespace tessera::tasks
