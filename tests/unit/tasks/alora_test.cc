// Activated LoRA on sharded models: what is active where, in training and while decoding.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/generation.h"
#include "peft/methods/activated_tokens.h"
#include "support/compare.h"
#include "support/program.h"
#include "tasks/preference.h"
#include "tasks/sft.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"
#include "unit/tasks/adapted_llama.h"
#include "unit/tasks/flag_sweep.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;
using test::operator+;

constexpr int kFirst = 11, kSecond = 17;  // the invocation

json lora_keys() {
  return {{"peft_type", "LORA"}, {"r", 3}, {"init_lora_weights", false}, {"target_modules", {"q_proj", "up_proj"}}};
}
AssembleOptions activated() {
  auto keys = lora_keys();
  keys["alora_invocation_tokens"] = {kFirst, kSecond};
  return adapted_llama(keys);
}

/// Rows with the invocation twice, once, not at all and at the end, padded on the right.
at::Tensor invoked_rows() {
  return torch::tensor({{3, kFirst, kSecond, 20, kFirst, kSecond, 9, 8},
                        {kFirst, kSecond, 7, 7, 21, 22, 0, 0},
                        {kFirst, 5, kSecond, 6, 7, 8, 9, 30},
                        {5, 6, 7, 8, 9, 10, kFirst, kSecond}},
                       at::kLong);
}

models::ModelInput masked(const at::Tensor& rows) {
  models::ModelInput in;
  in.input_ids = rows;
  in.attention_mask = rows.ne(0).to(at::kLong);
  return in;
}

TEST(ActivatedTokens, AreThoseFromTheLastInvocationOnInEachDocument) {
  const auto active = peft::active_tokens(invoked_rows(), {}, {kFirst, kSecond});
  const auto expected = torch::tensor(
      {{0, 0, 0, 0, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 1, 1}});
  EXPECT_TRUE(at::equal(active.to(at::kLong), expected.to(at::kLong))) << active;
  const auto positions = torch::tensor({{0, 1, 2, 3, 0, 1, 2, 3}}, at::kLong);
  const auto row = torch::tensor({{kFirst, kSecond, 4, 4, 4, 4, kFirst, kSecond}}, at::kLong);
  const auto documents = peft::active_tokens(row, positions, {kFirst, kSecond});
  EXPECT_TRUE(at::equal(documents.to(at::kLong), torch::tensor({{1, 1, 1, 1, 0, 0, 1, 1}}, at::kLong))) << documents;
}

TEST(Alora, IsTheBaseBeforeTheInvocationAndLoraFromItOn) {
  comm::run_threads(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    const at::NoGradGuard no_grad;
    const auto logits = [&](const AssembleOptions& options, const at::Tensor& rows) {
      const auto a = assemble(options, group);
      a.model->eval();
      return (*a.model)(masked(rows)).logits;
    };
    const auto ours = logits(activated(), invoked_rows()), base = logits({.model_folder = kLlama}, invoked_rows());
    test::expect_close(ours[2], base[2], 1e-6, "without an invocation");
    test::expect_close(ours[0].slice(0, 0, 4), base[0].slice(0, 0, 4), 1e-6, "before the last invocation");
    EXPECT_GT((ours[0].slice(0, 4) - base[0].slice(0, 4)).abs().max().item<double>(), 1e-3);
    const auto whole = invoked_rows().slice(0, 1, 2).slice(1, 0, 6);  // active from its first token on
    test::expect_close(ours[1].slice(0, 0, 6), logits(adapted_llama(lora_keys()), whole)[0], 1e-5,
                       "from the first token on");
  });
}

peft::Values gradients(int world, const AssembleOptions& options) {
  peft::Values out;
  std::mutex mutex;
  comm::run_threads(world, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(options, group);
    a.sharded->set_gradient_divisor(1.0);
    a.model->train();
    auto in = masked(invoked_rows().slice(0, group->rank(), std::nullopt, group->size()).contiguous());
    in.labels = in.input_ids.masked_fill(in.input_ids.eq(0), -100);
    in.loss_normalizer = 26;
    (*a.model)(in).loss.backward();
    a.sharded->visit_full_grads([&](const std::string& name, const at::Tensor& g) {
      const std::lock_guard<std::mutex> lock(mutex);
      out[name] = g.clone();
    });
  });
  return out;
}

TEST(Alora, HasTheSameGradientsOnAnyNumberOfRanksAndWhereBlocksRunAgain) {
  const auto alone = gradients(1, activated());
  ASSERT_EQ(alone.size(), 8U);
  auto again = activated();
  again.fsdp.activation_checkpointing = fsdp::wrap_classes({"LlamaDecoderLayer"});
  for (const auto& other : {gradients(2, activated()), gradients(3, activated()), gradients(2, again)})
    for (const auto& [name, g] : alone) test::expect_close(other.at(name), g, 1e-5, name);
}

TEST(Alora, DecodesWithACacheWhatItComputesWithoutOne) {
  comm::run_threads(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(activated(), group);
    a.model->eval();
    const at::NoGradGuard no_grad;
    const auto prompts = torch::tensor({{0, 5, kFirst, kSecond}, {9, 8, 7, 6}}, at::kLong);
    models::GenerationConfig config;
    config.max_new_tokens = 5;
    config.min_new_tokens = 5;
    config.eos_token_ids = {2};
    for (const std::int64_t beams : {1, 3}) {
      config.num_beams = beams;
      const auto out = models::generate(*a.model, prompts, prompts.ne(0).to(at::kLong), config).sequences;
      if (beams > 1) continue;  // what is best of several is not read off the logits of one
      auto in = masked(out);
      in.attention_mask = at::cat({prompts.ne(0).to(at::kLong), at::ones({2, 5}, at::kLong)}, 1);
      in.position_ids = in.attention_mask.cumsum(1) * in.attention_mask - 1;
      const auto chosen = (*a.model)(in).logits.argmax(-1).slice(1, 3, 8);
      EXPECT_TRUE(at::equal(chosen, out.slice(1, 4))) << chosen << out;
    }
  });
}

/// Runs over the tiny chat model, whose tokens are bytes.
class AloraRun : public testing::Test {
 protected:
  AloraRun() { make_model(test::kTinyChat, in("model")); }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  /// What is printed, or the error.
  std::string run(int (*task)(const Words&, std::ostream&, std::ostream&), const std::string& invocation,
                  const Words& rows, const Words& more = {}) {
    write_lines(in("rows.jsonl"), rows);
    const auto ids = text::open_tokenizer(in("model"))->encode(invocation, /*add_special_tokens=*/false).ids;
    std::ostringstream out, err;
    try {
      const auto code =
          task(Words{"--model_name_or_path", in("model"), "--dataset_name", in("rows.jsonl"), "--dataset_cache_dir",
                     in("cache"), "--output_dir", in("out"), "--max_steps", "1", "--use_peft_lora", "true",
                     "--alora_invocation_tokens", fmt::format("{}", fmt::join(ids, ",")), "--overwrite_output_dir"} +
                   more,
               out, err);
      EXPECT_EQ(code, 0) << err.str();
    } catch (const DataError& e) {
      return e.what();
    }
    return out.str();
  }
  const test::TempFolder folder_{"alora_run"};
};

TEST_F(AloraRun, FailsBeforeItTrainsWhereNoRowHasTheInvocationAndCountsThoseThatLackIt) {
  const Words texts = {R"({"text": "a question? >> an answer"})", R"({"text": "a text"})", R"({"text": "x >> y"})"};
  const auto none = run(sft, "##", texts);
  EXPECT_SAYS(none, "(\"##\") expected in the training rows, found in none of their 3 sequences");
  EXPECT_FALSE(std::filesystem::exists(in("out")));
  EXPECT_SAYS(run(sft, ">>", texts), "warning: 1 of 3 training sequences lack alora_invocation_tokens");
  EXPECT_SAYS(run(sft, ">>", texts, {"--packing", "true", "--max_length", "64"}), "warning: 1 of 3 training sequences");
  EXPECT_SAYS(run(sft, ">>", texts, {"--max_length", "4"}), "warning: 2 of 3 training sequences");
  EXPECT_EQ(run(sft, "x", {R"({"text": "x"})", R"({"text": "xx"})"}).find("warning"), std::string::npos);
}

TEST_F(AloraRun, LooksAtBothSidesOfPairs) {
  const Words pairs = {R"({"prompt": "a", "chosen": " >> b", "rejected": " c"})",
                       R"({"prompt": "a >>", "chosen": " b", "rejected": " c"})"};
  EXPECT_SAYS(run(dpo, ">>", pairs), "warning: 1 of 4 training sequences lack alora_invocation_tokens");
  EXPECT_SAYS(run(orpo, "##", pairs), "found in none of their 4 sequences");
  EXPECT_SAYS(run(kto, ">>",
                  {R"({"prompt": "a >>", "completion": " b", "label": true})",
                   R"({"prompt": "a", "completion": " b", "label": false})"}),
              "warning: 1 of 2 training sequences lack");
}

}  // namespace
}  // namespace tessera::tasks
