// Greedy and beam search against transformers' generate().
#include "models/generation.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "io/tensor_source.h"
#include "support/compare.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/generate_t5";

GenerationConfig with(GenerationConfig c, const nlohmann::json& options) {
  c.max_new_tokens = options.value("max_new_tokens", c.max_new_tokens);
  c.min_new_tokens = options.value("min_new_tokens", c.min_new_tokens);
  c.num_beams = options.value("num_beams", c.num_beams);
  c.num_return_sequences = options.value("num_return_sequences", c.num_return_sequences);
  c.length_penalty = options.value("length_penalty", c.length_penalty);
  c.repetition_penalty = options.value("repetition_penalty", c.repetition_penalty);
  c.no_repeat_ngram_size = options.value("no_repeat_ngram_size", c.no_repeat_ngram_size);
  if (options.value("early_stopping", false)) c.early_stopping = GenerationConfig::EarlyStopping::kTrue;
  return c;
}

class Generation : public testing::TestWithParam<int> {};

TEST_P(Generation, EqualsTransformers) {
  ModelConfig config;
  auto model = build_model(kFolder, &config);
  load_weights(*model, *io::open_weights(kFolder));
  const auto run = nlohmann::json::parse(std::ifstream(kFolder + "/expect.json"))["runs"][GetParam()];
  const auto io = io::open_safetensors(kFolder + "/io.safetensors");
  const auto out = generate(*model, io::read_tensor(*io, "input_ids"), io::read_tensor(*io, "attention_mask"),
                            with(read_generation_config(kFolder, config), run["kwargs"]), true);
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
  const auto name = "scores." + std::to_string(GetParam());
  if (io->find(name)) {
    auto ours = torch::stack(out.scores, 1), theirs = io::read_tensor(*io, name);
    ASSERT_TRUE(torch::equal(ours.isinf(), theirs.isinf()));
    test::expect_close(ours.masked_fill(ours.isinf(), 0), theirs.masked_fill(theirs.isinf(), 0), 1e-5, name);
  }
  EXPECT_TRUE(model->is_training());
}

INSTANTIATE_TEST_SUITE_P(Runs, Generation, testing::Range(0, 5));

TEST(GenerationOptions, MoreSequencesThanBeamsIsRefused) {
  auto model = build_model(kFolder, nullptr);
  GenerationConfig config;
  config.num_return_sequences = 2;
  EXPECT_THROW(generate(*model, torch::ones({1, 3}, torch::kLong), {}, config), ConfigError);
}

}  // namespace
}  // namespace tessera::models
