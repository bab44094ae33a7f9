// Greedy and beam search against transformers' generate().
#include "models/generation.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/compare.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

const std::string kGenerationGoldens = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/";
const std::string kGenerationFolder = kGenerationGoldens + "generate_t5";

struct Run {
  std::string folder;
  int number;
};

void PrintTo(const Run& run, std::ostream* out) {
  *out << run.folder << " run " << run.number;
}

class Generation : public testing::TestWithParam<Run> {};

TEST_P(Generation, EqualsTransformers) {
  const auto folder = kGenerationGoldens + GetParam().folder;
  ModelConfig config;
  auto model = build_model(folder, &config);
  load_weights(*model, *io::open_weights(folder));
  const auto run = nlohmann::json::parse(std::ifstream(folder + "/expect.json"))["runs"][GetParam().number];
  const auto io = io::open_safetensors(folder + "/io.safetensors");
  auto settings = read_generation_config(folder, config);
  read_generation_json(run["kwargs"], "expect.json", settings);
  const auto out =
      generate(*model, io::read_tensor(*io, "input_ids"), io::read_tensor(*io, "attention_mask"), settings, true);
  const auto expected = run["sequences"].get<std::vector<std::vector<std::int64_t>>>();
  ASSERT_EQ(out.sequences.size(0), static_cast<std::int64_t>(expected.size()));
  for (std::size_t r = 0; r < expected.size(); ++r) {
    const auto row = out.sequences[static_cast<std::int64_t>(r)].contiguous();
    const auto* p = row.const_data_ptr<std::int64_t>();
    EXPECT_EQ(std::vector<std::int64_t>(p, p + row.numel()), expected[r]) << "row " << r;
  }
  if (run.contains("sequences_scores")) {
    test::expect_close(out.sequences_scores, torch::tensor(run["sequences_scores"].get<std::vector<float>>()), 1e-5,
                       "scores");
  }
  const auto name = "scores." + std::to_string(GetParam().number);
  if (io->find(name)) {
    auto ours = torch::stack(out.scores, 1), theirs = io::read_tensor(*io, name);
    ASSERT_TRUE(torch::equal(ours.isinf(), theirs.isinf()));
    test::expect_close(ours.masked_fill(ours.isinf(), 0), theirs.masked_fill(theirs.isinf(), 0), 1e-5, name);
  }
  EXPECT_TRUE(model->is_training());
}

std::vector<Run> runs() {
  std::vector<Run> out;
  for (int i = 0; i < 7; ++i) out.push_back({"generate_t5", i});
  for (int i = 0; i < 4; ++i) out.push_back({"generate_llama", i});
  return out;
}

INSTANTIATE_TEST_SUITE_P(Runs, Generation, testing::ValuesIn(runs()));

class CausalGeneration : public testing::Test {
 protected:
  void SetUp() override {
    const auto folder = kGenerationGoldens + "generate_llama";
    ModelConfig config;
    model_ = build_model(folder, &config);
    load_weights(*model_, *io::open_weights(folder));
    settings_ = read_generation_config(folder, config);
    settings_.max_new_tokens = 6;
    prompt_ = torch::tensor({{5, 9, 11}, {0, 7, 8}}, torch::kLong);
    mask_ = torch::tensor({{1, 1, 1}, {0, 1, 1}}, torch::kLong);
  }
  std::shared_ptr<Model> model_;
  GenerationConfig settings_;
  at::Tensor prompt_, mask_;
};

TEST_F(CausalGeneration, SamplingIsRepeatableAndFollowsTheSeed) {
  settings_.do_sample = true;
  settings_.num_return_sequences = 3;
  settings_.seed = 4;
  const auto a = generate(*model_, prompt_, mask_, settings_).sequences;
  EXPECT_EQ(a.size(0), 6);
  EXPECT_TRUE(torch::equal(a, generate(*model_, prompt_, mask_, settings_).sequences));
  settings_.seed = 5;
  const auto b = generate(*model_, prompt_, mask_, settings_).sequences;
  EXPECT_FALSE(a.sizes() == b.sizes() && torch::equal(a, b));
}

TEST_F(CausalGeneration, SamplingFromOneTokenIsGreedy) {
  const auto greedy = generate(*model_, prompt_, mask_, settings_).sequences;
  settings_.do_sample = true;
  settings_.top_k = 1;
  EXPECT_TRUE(torch::equal(greedy, generate(*model_, prompt_, mask_, settings_).sequences));
}

TEST_F(CausalGeneration, StreamsTheTokensThatItReturns) {
  std::vector<at::Tensor> steps;
  const auto out =
      generate(*model_, prompt_, mask_, settings_, false, [&](const at::Tensor& t) { steps.push_back(t.clone()); });
  EXPECT_TRUE(torch::equal(torch::stack(steps, 1), out.sequences.narrow(1, 3, out.sequences.size(1) - 3)));
}

TEST_F(CausalGeneration, PromptsPaddedOnTheRightAreRefused) {
  EXPECT_THROW(generate(*model_, prompt_, mask_.flip(1), settings_), DataError);
}

TEST_F(CausalGeneration, PaddingIsNoPartOfAPrompt) {
  const auto batch = torch::tensor({{5, 9, 11}, {-1, 7, 8}}, torch::kLong),
             alone = torch::tensor({{7, 8}}, torch::kLong);
  const auto first = generate(*model_, alone, {}, settings_).sequences[0][2].item<std::int64_t>();
  std::vector<GenerationConfig> all(4, settings_);
  all[0].repetition_penalty = 5;
  all[1].no_repeat_ngram_size = 1;
  all[2].eos_token_ids = {first};
  all[2].min_length = 3;  // of two tokens, with padding of three
  all[3].forced_eos_token_ids = {9};
  for (const auto& settings : all) {
    const auto one = generate(*model_, alone, {}, settings).sequences[0];
    const auto beside = generate(*model_, batch, mask_, settings).sequences[1].narrow(0, 1, one.numel());
    EXPECT_TRUE(torch::equal(beside, one)) << beside << one;
  }
}

// As transformers, which makes a minimum length of it.
TEST_F(CausalGeneration, AMinimumOfNewTokensReplacesTheMinimumLength) {
  const auto alone = torch::tensor({{7, 8}}, torch::kLong);
  auto settings = settings_;
  settings.eos_token_ids = {generate(*model_, alone, {}, settings).sequences[0][2].item<std::int64_t>()};
  settings.min_length = 5;
  EXPECT_GE(generate(*model_, alone, {}, settings).sequences.size(1), 5);
  settings.min_new_tokens = 0;
  EXPECT_EQ(generate(*model_, alone, {}, settings).sequences.size(1), 3);
}

TEST_F(CausalGeneration, AnEndThatIsNotAllowedYetDoesNotGrowLikelier) {
  const auto alone = torch::tensor({{7, 8}}, torch::kLong);
  auto settings = settings_;
  settings.eos_token_ids = {generate(*model_, alone, {}, settings).sequences[0][2].item<std::int64_t>()};
  settings.min_new_tokens = 4;
  settings.exponential_decay_length_penalty = {0, 1.5};
  EXPECT_GE(generate(*model_, alone, {}, settings).sequences.size(1), 6);
}

// transformers writes the grown scores by index, so an id that is listed twice counts once.
TEST_F(CausalGeneration, AnEndTokenThatIsNamedTwiceDecaysOnce) {
  auto settings = settings_;
  settings.exponential_decay_length_penalty = {0, 1.3};
  settings.eos_token_ids = {5};
  const auto once = generate(*model_, prompt_, mask_, settings, /*want_scores=*/true);
  settings.eos_token_ids = {5, 5, 5};
  const auto thrice = generate(*model_, prompt_, mask_, settings, /*want_scores=*/true);
  ASSERT_GT(once.scores.size(), 1u);
  EXPECT_TRUE(torch::equal(once.scores[1], thrice.scores[1]));
}

TEST_F(CausalGeneration, TokensThatTheModelDoesNotHaveArePassedOver) {
  const auto plain = generate(*model_, prompt_, mask_, settings_).sequences;
  auto settings = settings_;
  const std::int64_t far = std::int64_t{1} << 40;
  settings.suppress_tokens = settings.begin_suppress_tokens = {-1, far};
  settings.bad_words_ids = {{far}, {-1}};
  settings.eos_token_ids.insert(settings.eos_token_ids.end(), {-1, far});
  settings.min_length = 1;
  settings.exponential_decay_length_penalty = {0, 1.0};
  EXPECT_TRUE(torch::equal(plain, generate(*model_, prompt_, mask_, settings).sequences));
  settings.forced_eos_token_ids = {3, far};
  EXPECT_THROW(generate(*model_, prompt_, mask_, settings), ConfigError);
}

TEST(GenerationOfT5, RowsThatHaveEndedStayWhileOtherRanksGoOn) {
  ModelConfig config;
  auto model = build_model(kGenerationFolder, &config);
  load_weights(*model, *io::open_weights(kGenerationFolder));
  auto settings = read_generation_config(kGenerationFolder, config);
  const auto source = torch::tensor({{5, 9}, {7, 8}}, torch::kLong);
  settings.max_length = 24;
  for (const std::int64_t beams : {1, 3}) {
    settings.num_beams = beams;
    settings.eos_token_ids = {};
    const auto endless = generate(*model, source, {}, settings).sequences;
    settings.eos_token_ids = {endless[0][3].item<std::int64_t>(), endless[1][4].item<std::int64_t>()};
    const auto alone = generate(*model, source, {}, settings).sequences;
    ASSERT_LT(alone.size(1), 16) << "they end early";
    std::int64_t steps = 0, own = 0;
    const auto others = [&](bool mine) {
      own += mine;
      return ++steps < 20;
    };
    const auto beside = generate(*model, source, {}, settings, false, {}, others).sequences;
    EXPECT_EQ(steps, 20);
    EXPECT_LT(own, 16);
    EXPECT_TRUE(torch::equal(beside.narrow(1, 0, alone.size(1)), alone)) << beams;
    EXPECT_TRUE(
        beside.narrow(1, alone.size(1), beside.size(1) - alone.size(1)).eq(settings.pad_token_id).all().item<bool>());
  }
}

TEST(GenerationOfT5, ADecoderBeginsWithOneTokenOrOneForEachRow) {
  ModelConfig config;
  auto model = build_model(kGenerationFolder, &config);
  load_weights(*model, *io::open_weights(kGenerationFolder));
  auto settings = read_generation_config(kGenerationFolder, config);
  settings.decoder_start_token_ids = {3, 4};
  EXPECT_NO_THROW(generate(*model, torch::tensor({{5, 9}, {7, 8}}, torch::kLong), {}, settings));
  EXPECT_THROW(generate(*model, torch::tensor({{5}, {7}, {9}}, torch::kLong), {}, settings), ConfigError);
}

/// Rows of a Phi-3 that grow from short to long rotary factors: transformers reads them again there (its cached code
/// without the causal mask, so that the reference is its generation without a cache: whole rows, step by step).
class LongFactors : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_.path() + "/config.json")
        << R"({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "vocab_size": 29, "hidden_size": 24,
              "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 32, "original_max_position_embeddings": 6, "pad_token_id": 0,
              "initializer_range": 0.5, "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2],
              "long_factor": [2.0, 5.0, 9.0]}})";
    ModelConfig config;
    model_ = build_model(folder_.path(), &config);
    init_weights(*model_, 7);
    settings_ = read_generation_config(folder_.path(), config);
    settings_.max_new_tokens = 7;
    settings_.eos_token_ids.clear();
  }

  /// Of what follows the first `length` tokens of each row.
  at::Tensor logits_after(const at::Tensor& rows, std::int64_t length) {
    const torch::NoGradGuard no_grad;
    model_->eval();
    ModelInput in;
    in.input_ids = rows.narrow(1, 0, length).contiguous();
    in.attention_mask = torch::cat({mask_, torch::ones({rows.size(0), length - mask_.size(1)}, torch::kLong)}, 1);
    in.position_ids = (in.attention_mask.cumsum(1) - 1).clamp_min(0);
    return (*model_)(in).logits.select(1, -1);
  }

  const test::TempFolder folder_{"long_factors"};
  std::shared_ptr<Model> model_;
  GenerationConfig settings_;
  const at::Tensor prompt_ = torch::tensor({{5, 9, 11, 4}, {0, 0, 7, 8}}, torch::kLong);
  const at::Tensor mask_ = torch::tensor({{1, 1, 1, 1}, {0, 0, 1, 1}}, torch::kLong);
};

TEST_F(LongFactors, AllTokensTurnWithThemWhenRowsGrowToThem) {
  const auto out = generate(*model_, prompt_, mask_, settings_, true);
  ASSERT_EQ(out.scores.size(), 7U);
  for (std::size_t step = 0; step < out.scores.size(); ++step) {
    test::expect_close(out.scores[step], logits_after(out.sequences, 4 + static_cast<std::int64_t>(step)), 1e-5,
                       "step " + std::to_string(step));
  }
}

TEST_F(LongFactors, BeamsAreReadAgainInTheirOrder) {
  settings_.num_beams = 3;
  settings_.length_penalty = 0;
  const auto out = generate(*model_, prompt_, mask_, settings_);
  auto sums = torch::zeros({2});
  for (std::int64_t at = 4; at < out.sequences.size(1); ++at) {
    const auto next = out.sequences.narrow(1, at, 1);
    sums += torch::log_softmax(logits_after(out.sequences, at), -1).gather(1, next).squeeze(1);
  }
  test::expect_close(out.sequences_scores, sums, 1e-5, "scores");
}

TEST(GenerationOptions, WhatWouldEndATextElsewhereIsRefused) {
  GenerationConfig config;
  EXPECT_THROW(read_generation_json({{"stop_strings", {"\n\n"}}}, "generation_config.json", config), ConfigError);
  read_generation_json({{"stop_strings", nullptr}}, "generation_config.json", config);
}

TEST(GenerationOptions, WhatWouldChangeTheTokensInAWayThatIsNotBuiltIsRefused) {
  GenerationConfig config;
  const auto read = [&](const nlohmann::json& json) { read_generation_json(json, "generation_config.json", config); };
  for (const nlohmann::json& json : {nlohmann::json{{"max_time", 2.5}},
                                     {{"top_h", 0.4}},
                                     {{"token_healing", true}},
                                     {{"sequence_bias", {{{3}, 1.0}}}},
                                     {{"cache_implementation", "quantized"}}})
    EXPECT_THROW(read(json), ConfigError) << json;
  for (const nlohmann::json& json : {nlohmann::json{{"max_time", nullptr}},
                                     {{"token_healing", false}},
                                     {{"encoder_no_repeat_ngram_size", 0}},
                                     {{"cache_implementation", "hybrid"}}})
    EXPECT_NO_THROW(read(json)) << json;
}

TEST(GenerationOptions, MoreSequencesThanBeamsIsRefused) {
  auto model = build_model(kGenerationFolder, nullptr);
  GenerationConfig config;
  config.num_return_sequences = 2;
  EXPECT_THROW(generate(*model, torch::ones({1, 3}, torch::kLong), {}, config), ConfigError);
}

}  // namespace
}  // namespace tessera::models
