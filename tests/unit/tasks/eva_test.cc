// LoRA that begins with EVA: ranks and first values are those of peft's initialize_lora_eva_weights (tests/data/eva).
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/visit_dense.h"
#include "peft/adapter_config.h"
#include "support/compare.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tasks/eva_start.h"
#include "tasks/preference.h"
#include "tasks/seq2seq.h"
#include "tasks/sft.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "unit/tasks/adapted_llama.h"
#include "unit/tasks/flag_sweep.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

const std::string kGoldenModels = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/";
const std::string kEva = std::string(TESSERA_TEST_DATA) + "/eva/";

/// The batches that peft was shown, each rank's rows of them.
class ShownRows final : public train::Trainable {
 public:
  ShownRows(models::Model& model, const comm::Communicator& group) : model_(model), group_(group) {}
  std::int64_t batches_per_epoch() const override { return 5; }
  double loss_tokens(std::int64_t, std::int64_t) override { return 1; }
  std::int64_t input_tokens(std::int64_t, std::int64_t) override { return 0; }
  std::int64_t rows(std::int64_t) const override { return 6; }
  void set_training(bool training) override { model_.train(training); }
  at::Tensor loss(std::int64_t, std::int64_t batch, double normalizer) override {
    const auto read = [&](const std::string& name) {
      const auto all = io::read_tensor(*file_, std::to_string(batch) + "." + name);
      const auto mine = all.size(0) / group_.size();
      return all.narrow(0, group_.rank() * mine, mine).contiguous();
    };
    models::ModelInput in;
    in.input_ids = read("input_ids");
    in.attention_mask = read("attention_mask");
    in.labels = read("labels");
    if (model_.kind() == models::ModelKind::kSequenceClassification) {
      in.input_ids = in.input_ids.remainder(40) + 3;
      in.labels = in.input_ids.select(1, 0).remainder(2);
    }
    in.loss_normalizer = normalizer;
    in.embedding_noise = 5;  // of training steps, not of what EVA sees
    return model_(std::move(in)).loss;
  }

 private:
  models::Model& model_;
  const comm::Communicator& group_;
  const std::shared_ptr<const io::TensorSource> file_ = io::open_safetensors(kEva + "batches.safetensors");
};

AssembleOptions options_with(const json& keys) {
  return {.model_folder = kLlama, .method = peft::read_peft_keys(keys, "the test")};
}

/// Rank 0's of `world`; all ranks have the same bits.
EvaStart start_on(int world, const AssembleOptions& options) {
  EvaStart first;
  std::mutex mutex;
  std::vector<peft::Values> others;
  comm::run_threads(world, [&](const std::shared_ptr<comm::Communicator>& group) {
    AssembleOptions base = options;
    base.method = nullptr;
    const auto model = assemble(base, group);
    ShownRows rows(*model.model, *group);
    auto start = find_eva_start(model, options, rows, *group);
    const std::lock_guard<std::mutex> lock(mutex);
    if (group->rank() == 0)
      first = start;
    else
      others.push_back(start.values);
  });
  for (const auto& values : others)
    for (const auto& [name, value] : first.values) EXPECT_TRUE(at::equal(values.at(name), value)) << name;
  return first;
}

std::map<std::string, double> pattern_of(const json& config, const std::string& key) {
  return config.at(key).get<std::map<std::string, double>>();
}

std::set<std::string> targets_of(const json& config) {
  return config.at("target_modules").get<std::set<std::string>>();
}

class EvaLikePeft : public testing::TestWithParam<const char*> {};

TEST_P(EvaLikePeft, OnOneTwoAndThreeRanks) {
  const auto folder = kEva + GetParam() + "/";
  const auto given = json::parse(read_file(folder + "given.json"));
  const auto expected = json::parse(read_file(folder + "adapter_config.json"));
  const auto theirs = io::open_safetensors(folder + "adapter_model.safetensors");
  for (const int world : {1, 2, 3}) {
    const auto start = start_on(world, options_with(given));
    const auto config = json::parse(peft::adapter_config_json(*start.method));
    EXPECT_EQ(pattern_of(config, "rank_pattern"), pattern_of(expected, "rank_pattern")) << world;
    EXPECT_EQ(pattern_of(config, "alpha_pattern"), pattern_of(expected, "alpha_pattern")) << world;
    EXPECT_EQ(targets_of(config), targets_of(expected)) << world;
    std::size_t compared = 0;
    for (const auto& [name, value] : start.values) {
      const auto stored = "base_model.model." + name.substr(0, name.find(".default")) + ".weight";
      ASSERT_NE(theirs->find(stored), nullptr) << stored;
      test::expect_close(value, io::read_tensor(*theirs, stored), 1e-3, name);
      ++compared;
    }
    EXPECT_EQ(2 * compared, theirs->tensors().size());
  }
}

INSTANTIATE_TEST_SUITE_P(Eva, EvaLikePeft, testing::Values("plain", "patterns", "whitened"));

TEST(Eva, LeavesTheModelWhereItWasUntilItTrains) {
  const auto given = json::parse(read_file(kEva + "plain/given.json"));
  auto options = options_with(given);
  const auto start = start_on(1, options);
  options.method = start.method;
  comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(options, group);
    checkpoint::write_values(*a.sharded, start.values);
    test::expect_close(logits_of(a), logits_of(assemble({.model_folder = kLlama}, group)), 1e-6, "B is zero");
    const auto held = checkpoint::gather_values(*a.sharded, nn::adapter_parameters(*a.model));
    for (const auto& [name, value] : start.values) EXPECT_TRUE(at::equal(held.at(name), value)) << name;
  });
}

TEST(Eva, SaysWhatItCannotDo) {
  const auto given = json::parse(read_file(kEva + "plain/given.json"));
  const auto refusal = [&](const json& changes) {
    auto keys = given;
    keys.update(changes);
    try {
      start_on(1, options_with(keys));
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_NE(refusal({{"r", 40}}).find("lower r or rho"), std::string::npos);
  EXPECT_NE(
      refusal(
          {{"r", 2}, {"target_modules", {"down_proj"}}, {"layers_to_transform", {1}}, {"eva_config", {{"tau", 1.0}}}})
          .find("lower tau"),
      std::string::npos);
  for (const json& wrong : {json{{"rho", 0.5}}, json{{"tau", 2}}, json{{"whitten", true}}}) {
    auto keys = given;
    keys["eva_config"] = wrong;
    EXPECT_THROW(options_with(keys).method->check(), ConfigError) << wrong;
  }
  EXPECT_THROW(assemble(options_with(given), comm::make_solo()), ConfigError) << "no rows to begin with";
}

TEST(Eva, TakesAClassifiersRowsWholeButNotWhatSeesOneTokenOfEach) {
  const auto of_bert = [](const json& targets) {
    auto options =
        options_with({{"peft_type", "LORA"}, {"r", 2}, {"init_lora_weights", "eva"}, {"target_modules", targets}});
    options.model_folder = kGoldenModels + "base_bert";
    return start_on(2, options);
  };
  EXPECT_EQ(of_bert({"query", "value"}).values.count("bert.encoder.layer.0.attention.self.query.lora_A.default.weight"),
            1U);
  try {
    of_bert({"pooler.dense"});
    FAIL() << "nothing was refused";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("leave output heads, poolers and experts out"), std::string::npos) << e.what();
  }
}

/// A run of the program over the tiny chat model.
class EvaRun : public testing::Test {
 protected:
  EvaRun() { make_model(test::kTinyChat, in("model")); }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string run(int (*task)(const Words&, std::ostream&, std::ostream&), const std::string& out, const Words& more) {
    Words words = {"--model_name_or_path",
                   in("model"),
                   "--dataset_name",
                   test::kTinyChat,
                   "--dataset_cache_dir",
                   in("cache"),
                   "--output_dir",
                   in(out),
                   "--max_steps",
                   "4",
                   "--save_steps",
                   "2",
                   "--use_peft_lora",
                   "--lora_r",
                   "4",
                   "--lora_dropout",
                   "0",
                   "--lora_target_modules",
                   "q_proj,down_proj",
                   "--init_lora_weights",
                   "eva",
                   "--eva_config",
                   "{\"rho\": 1.5}",
                   "--disable_tqdm",
                   "--max_length",
                   "48",
                   "--per_device_train_batch_size",
                   "4",
                   "--print_model",
                   "false"};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream text, err;
    EXPECT_EQ(task(with_method_keys(words), text, err), 0) << err.str();
    return text.str();
  }
  const test::TempFolder folder_{"eva_run"};
};

TEST_F(EvaRun, BeginsWithItAndGoesOnBitForBitFromACheckpoint) {
  const auto said = run(sft, "straight", {});
  EXPECT_NE(said.find("EVA: 4 layers, ranks"), std::string::npos) << said;
  const auto config = json::parse(read_file(in("straight/adapter_config.json")));
  EXPECT_FALSE(config.at("rank_pattern").empty());
  EXPECT_EQ(config.at("init_lora_weights"), true);
  std::filesystem::create_directories(in("resumed"));
  std::filesystem::copy(in("straight/checkpoint-2"), in("resumed/checkpoint-2"),
                        std::filesystem::copy_options::recursive);
  const auto again = run(sft, "resumed", {"--resume_from_checkpoint", "true"});
  EXPECT_EQ(again.find("EVA:"), std::string::npos) << "the ranks are those of the checkpoint";
  EXPECT_EQ(read_file(in("resumed/adapter_model.safetensors")), read_file(in("straight/adapter_model.safetensors")));
}

TEST_F(EvaRun, BeginsWithItWhereNothingIsGoneOnFrom) {
  const auto said = run(sft, "anew", {"--resume_from_checkpoint", "false"});
  EXPECT_NE(said.find("EVA: 4 layers, ranks"), std::string::npos) << said;
}

TEST_F(EvaRun, NeedsRowsToTrainOn) {
  try {
    run(sft, "out", {"--do_train", "false"});
    FAIL() << "nothing was refused";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("--adapter_name_or_path"), std::string::npos) << e.what();
  }
}

TEST_F(EvaRun, IsRefusedByNameForAnEncoderDecoderModel) {
  make_model(std::string(TESSERA_TEST_DATA) + "/../../examples/demo/model", in("t5"));
  write_lines(in("texts.jsonl"),
              {R"({"source": "one and", "target": "two"})", R"({"source": "two", "target": "four"})"});
  std::ostringstream text, err;
  try {
    (void)seq2seq({"--model_name_or_path", in("t5"), "--output_dir", in("t5_out"), "--dataset_path", in("texts.jsonl"),
                   "--text_column", "source", "--label_column", "target", "--init_lora_weights", "eva"},
                  text, err);
    FAIL() << "nothing was refused";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("decoders and classifiers"), std::string::npos) << e.what();
  }
}

/// The commands of preferences, on ranks that are threads: ranks and first values are those of one process.
class EvaOfPreferences : public EvaRun, public testing::WithParamInterface<preference::Method> {
 protected:
  static Words rows(preference::Method method) {
    Words lines;
    for (int i = 0; i < 24; ++i) {
      const auto number = std::to_string(i * 7 % 31);
      json row = {{"prompt", "what is " + number + " and " + std::to_string(i)}};
      if (method == preference::Method::kKto) {
        row["completion"] = i % 3 == 0 ? " it is none" : " it is " + number;
        row["label"] = i % 3 != 0;
      } else {
        row["chosen"] = " it is " + number + (i % 2 == 0 ? " for sure" : "");
        row["rejected"] = " who knows but " + std::to_string(i * i);
      }
      lines.push_back(row.dump());
    }
    return lines;
  }
  /// A of each layer, and the ranks, as they are saved with a rate of 0.
  std::string train(int world) {
    const auto method = GetParam();
    const auto out = in("out" + std::to_string(world));
    const Words words = {"--model_name_or_path",
                         in("model"),
                         "--dataset_name",
                         in("data"),
                         "--dataset_cache_dir",
                         in("cache"),
                         "--output_dir",
                         out,
                         "--max_steps",
                         "1",
                         "--learning_rate",
                         "0",
                         "--use_peft_lora",
                         "--lora_r",
                         "3",
                         "--lora_target_modules",
                         "q_proj,k_proj,down_proj",
                         "--init_lora_weights",
                         "eva",
                         "--bf16",
                         "false",
                         "--disable_tqdm",
                         "--print_model",
                         "false",
                         "--gradient_checkpointing",
                         "false",
                         "--per_device_train_batch_size",
                         std::to_string(12 / world)};
    std::ostringstream quiet;
    const auto options = parse_preference(method, words, quiet);
    comm::run_threads(world, [&](const std::shared_ptr<comm::Communicator>& group) {
      std::ostringstream text, err;
      EXPECT_TRUE(train_preferences(*options, group, text, err)) << err.str();
      EXPECT_NE(text.str().find("EVA: "), std::string::npos) << text.str();
    });
    return out;
  }
};

TEST_P(EvaOfPreferences, BeginAlikeOnOneTwoAndThreeRanks) {
  write_lines(in("data/train.jsonl"), rows(GetParam()));
  const auto alone = train(1);
  const auto config = json::parse(read_file(alone + "/adapter_config.json"));
  const auto values = io::open_safetensors(alone + "/adapter_model.safetensors");
  for (const int world : {2, 3}) {
    const auto out = train(world);
    EXPECT_EQ(pattern_of(json::parse(read_file(out + "/adapter_config.json")), "rank_pattern"),
              pattern_of(config, "rank_pattern"));
    const auto others = io::open_safetensors(out + "/adapter_model.safetensors");
    for (const auto& info : values->tensors())
      if (info.name.find("lora_A") != std::string::npos)
        test::expect_close(io::read_tensor(*others, info.name), io::read_tensor(*values, info.name), 1e-3, info.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Commands, EvaOfPreferences,
                         testing::Values(preference::Method::kDpo, preference::Method::kOrpo, preference::Method::kCpo,
                                         preference::Method::kKto, preference::Method::kReward),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tessera::tasks
