// Jobs by their flags: packed bases, optimizers, activations, hosts, and which flags make a job fit.
#include "estimate/plan_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "config/byte_size.h"
#include "estimate/estimate.h"
#include "estimate/optimizer_state.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

const std::string kQuantGoldens = std::string(TESSERA_TEST_DATA) + "/goldens/C_quant/";
constexpr double kGiB = 1 << 30;

struct LlamaSizes {
  std::int64_t hidden, inner, heads, key_heads, layers;
};

class Plan : public testing::Test {
 protected:
  std::vector<ModelTensor> llama(const LlamaSizes& s, const std::string& more = "") {
    std::ofstream(folder_ + "/config.json")
        << R"({"model_type": "llama", "hidden_size": )" << s.hidden << R"(, "intermediate_size": )" << s.inner
        << R"(, "num_attention_heads": )" << s.heads << R"(, "num_key_value_heads": )" << s.key_heads
        << R"(, "num_hidden_layers": )" << s.layers << R"(, "vocab_size": 32000, "torch_dtype": "bfloat16")" << more
        << "}";
    return read_model_tensors(folder_);
  }
  std::vector<ModelTensor> llama_70b(const std::string& more = "") { return llama({8192, 28672, 64, 8, 80}, more); }
  std::string printed(std::vector<std::string> args) {
    args.insert(args.begin(), folder_);
    std::ostringstream out;
    const auto options = parse_estimate(args, out);
    print_estimate(*options, read_model_tensors(folder_), out);
    return out.str();
  }
  const test::TempFolder temporary_{"plan"};
  const std::string& folder_ = temporary_.path();
};

std::int64_t part(const RankPlan& plan, const std::string& name) {
  for (const auto& p : plan.parts)
    if (name == p.what) return p.bytes;
  return 0;
}

PlanRequest lora(const std::string& precision = "bf16") {
  PlanRequest r;
  r.adapter.emplace();
  r.mixed_precision = precision;
  return r;
}

TEST_F(Plan, APackedFolderCountsTheBytesOfItsFiles) {
  for (const char* name : {"model_nf4", "model_fp4", "model_nf4_double_bf16", "model_nf4_double_storage_bf16"}) {
    const auto tensors = read_model_tensors(kQuantGoldens + name);
    std::int64_t packed = 0, by_form = 0, dense = 0;
    for (const auto& t : tensors) {
      packed += t.packed_bytes;
      if (t.packed_bytes == 0) dense += t.dtype.empty() ? 1 : 0;
      if (t.packed_bytes > 0)
        by_form += packed_bytes({.bits = 4, .double_quant = std::string(name).find("double") != std::string::npos},
                                t.shape[0], t.shape[1]);
    }
    EXPECT_EQ(dense, 0) << name << ": every dense tensor has its file's dtype";
    EXPECT_GT(packed, by_form) << name;
    // Tables of the codes and the state's description come beside, about a kilobyte and a half a matrix.
    EXPECT_LT(packed, by_form + static_cast<std::int64_t>(tensors.size()) * 1600) << name;
  }
}

TEST_F(Plan, PackedWeightsTakeFourOrEightBitsAndTheirStatistics) {
  EXPECT_EQ(packed_bytes({.bits = 4}, 128, 64), 4096 + 4 * 128);
  EXPECT_EQ(packed_bytes({.bits = 4, .double_quant = true}, 128, 64), 4096 + 128 + 4 + 4);
  EXPECT_EQ(packed_bytes({.bits = 4}, 1, 65), 33 + 8) << "odd sizes: half a byte and a block more";
  EXPECT_EQ(packed_bytes({.bits = 8}, 128, 64), 128 * 64 + 4 * 128);
  const auto tensors = llama({512, 1024, 8, 8, 2});
  auto request = lora();
  request.ranks = 2;
  request.packed = {.bits = 4};
  std::int64_t expected = 0;
  for (const auto& t : tensors)
    if (is_linear(t)) expected += packed_bytes({.bits = 4}, t.shape[0], t.shape[1]);
  EXPECT_EQ(part(plan_for(request, tensors), "packed weights"), expected / 2);
  EXPECT_EQ(part(plan_for(request, tensors), "frozen weights"), 2 * (2 * 32000 * 512 + 5 * 512) / 2);
}

TEST_F(Plan, AFolderDescribedAsPackedIsPlannedWithoutWeights) {
  const auto dense = llama_70b();
  const auto packed = llama_70b(R"(, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true,
      "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true})");
  auto request = lora();
  request.packed = {.bits = 4, .double_quant = true};
  const auto while_read = plan_for(request, dense);
  request.packed.reset();
  EXPECT_EQ(part(plan_for(request, packed), "packed weights"), part(while_read, "packed weights"));
  EXPECT_FALSE(PlanRequest{}.possible(packed)) << "packed weights do not train";
}

TEST_F(Plan, GaLoreAndApolloAreCountedByTheirTargetsAndTheirRank) {
  llama({512, 1024, 8, 8, 2});
  const auto state = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--optim", "galore_adamw"});
    const std::string text = printed(flags), name = "optimizer state";
    return text.substr(text.find(name) + name.size(), 60);
  };
  const auto all = state({});
  EXPECT_EQ(state({"--optim_target_modules", "all-linear", "--optim_args", "rank=128,update_proj_gap=100"}), all);
  EXPECT_NE(state({"--optim_args", "rank=8"}), all);
  EXPECT_NE(state({"--optim_target_modules", "q_proj,v_proj"}), all);
  EXPECT_NE(state({"--optim_target_modules", "lm_head"}), state({"--optim_target_modules", "q_proj"}));
  for (const auto& [flags, named] : {std::pair{std::vector<std::string>{"--optim_args", "rank=0"}, "rank is '0'"},
                                     {{"--optim_args", "proj_type=up"}, "proj_type is 'up'"},
                                     {{"--optim_target_modules", "("}, "is no regular expression"}})
    try {
      state(flags);
      ADD_FAILURE() << flags[0];
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
    }
}

TEST_F(Plan, EightBitStatesTakeAByteAndTheirStatistics) {
  EXPECT_EQ(optimizer_state_bytes("adamw_torch", "x.weight", {100, 100}), 8 * 10000);
  EXPECT_EQ(optimizer_state_bytes("adamw_8bit", "x.weight", {100, 100}), 2 * (10000 + 4 * 40));
  EXPECT_EQ(optimizer_state_bytes("paged_adamw_8bit", "x.weight", {10, 100}), 8 * 1000) << "below 4096 elements";
  EXPECT_EQ(optimizer_state_bytes("adamw_bnb_8bit", "model.embed_tokens.weight", {100, 100}), 8 * 10000);
  for (const char* table : {"gpt_neox.embed_in.weight", "bert.embeddings.position_embeddings.weight", "shared.weight",
                            "deberta.encoder.rel_embeddings.weight"})
    EXPECT_EQ(optimizer_state_bytes("adamw_8bit", table, {100, 100}), 8 * 10000) << table;
  for (const char* none : {"transformer.word_embeddings_layernorm.weight", "wte.lora_embedding_A.default"})
    EXPECT_EQ(optimizer_state_bytes("adamw_8bit", none, {10000}), 2 * (10000 + 4 * 40)) << none;
  EXPECT_EQ(optimizer_state_bytes("lion_8bit", "x.weight", {64, 64}), 4096 + 4 * 16);
  EXPECT_EQ(optimizer_state_bytes("adamw_torch_8bit", "model.embed_tokens.weight", {64, 64}), 2 * (4096 + 4 * 16));
  EXPECT_EQ(optimizer_state_bytes("adamw_torch_4bit", "x.weight", {37, 128}), 2 * (4736 / 2 + 4 * 37));
  EXPECT_EQ(optimizer_state_bytes("adamw_torch_8bit", "x.weight", {37, 128}), 8 * 4736) << "no whole blocks";
  EXPECT_EQ(optimizer_state_bytes("sgd", "x.weight", {100, 100}), 0);
  EXPECT_EQ(optimizer_state_bytes("adafactor", "x.weight", {100, 50}), 4 * 150);
  EXPECT_THROW(optimizer_state_bytes("adamw_9bit", "x.weight", {1}), ConfigError);
}

TEST_F(Plan, AdaLoraKeepsTwoAveragesBesideTheOptimizersStates) {
  const auto tensors = read_model_tensors(kQuantGoldens + "base_llama");
  auto request = lora("no");
  const auto states_of = [&] {
    const auto plan = plan_for(request, tensors);
    return static_cast<double>(part(plan, "optimizer state")) / static_cast<double>(part(plan, "weights that train"));
  };
  EXPECT_EQ(states_of(), 2);
  request.adapter->peft_type = "ADALORA";
  EXPECT_EQ(states_of(), 4);
  request.optim = "sgd";
  EXPECT_EQ(states_of(), 2);
}

// What runs of train_bench on two ranks added for each token (`bench/e2e/memory.sh`, "shapes"): LoRA, bf16, a Llama of
// hidden size 2048.
TEST_F(Plan, ActivationsAreThoseThatRunsMeasured) {
  constexpr double kMiB = 1 << 20;
  struct Measured {
    std::int64_t layers, length;
    bool checkpointing;
    double mib;  // of tensors that a rank ever touched, less those of a run with 16 tokens
  };
  for (const auto& m : {Measured{4, 512, false, 106.3}, Measured{4, 1024, false, 216.1}, Measured{4, 512, true, 54.8},
                        Measured{4, 1024, true, 113.1}}) {
    const auto shape = activation_shape(llama({2048, 5632, 32, 4, m.layers}));
    const auto bytes = activation_bytes(shape, {}, {1, m.length - 16, m.checkpointing}, 2);
    EXPECT_NEAR(static_cast<double>(bytes.kept + bytes.working) / kMiB, m.mib, 0.04 * m.mib) << m.length;
  }
}

TEST_F(Plan, AnEncoderIsGivenOtherRowsThanItsDecoder) {
  const auto tensors = read_model_tensors(std::string(TESSERA_TEST_DATA) + "/goldens/A_models/t5_v1_0");
  PlanRequest request;
  request.batch = {.rows = 4, .length = 16, .encoder_length = 64};
  // Queries, keys, values, what attention gives and a number of each head, two or three branches; and what all of the
  // decoder's blocks make of the encoder's tokens. Both stacks have two blocks.
  const std::int64_t model = 24, heads = 4, inner = heads * 8, wide = 40, source = 4 * 64, target = 4 * 16;
  const std::int64_t of_encoder = source * (2 * (4 * inner + heads + 2 * model + wide) + model + 2 * 2 * inner);
  const std::int64_t of_decoder = target * 2 * (6 * inner + 2 * heads + 3 * model + wide);
  EXPECT_EQ(part(plan_for(request, tensors), "activations kept for backward"), 4 * (of_encoder + of_decoder));
  auto prompt = request;
  prompt.adapter = AdapterRequest{.peft_type = "PROMPT_TUNING", .num_virtual_tokens = 16};
  auto longer = prompt;
  longer.adapter->num_virtual_tokens = 32;
  const auto kept = [&](const PlanRequest& r) { return part(plan_for(r, tensors), "activations kept for backward"); };
  const auto unread = source * 2 * inner;  // what attention gives, where no matrix trains
  EXPECT_EQ(kept(longer) - kept(prompt), 4 * (of_encoder - unread) * 16 / 64) << "in front of the encoder's rows";
}

// In the first block's backward its own gradients and the table's have not come.
TEST_F(Plan, GradientsComeAsActivationsGo) {
  PlanRequest request;
  request.ranks = 2;
  const auto tensors = llama({2048, 5632, 32, 4, 4});
  request.batch = {};
  const auto all = part(plan_for(request, tensors), "gradients");
  request.batch = {.rows = 4, .length = 512, .checkpointing = true};
  const auto plan = plan_for(request, tensors);
  std::int64_t missing = 0;
  for (const auto& t : tensors)
    if (t.name.find("layers.0.") != std::string::npos || t.name.find("embed_tokens") != std::string::npos)
      missing += t.numel();
  EXPECT_STREQ(plan.phase, "backward");
  EXPECT_EQ(part(plan, "gradients"), all - 4 * missing / 2);
}

TEST_F(Plan, OneRankHoldsTheSameHoweverItIsSharded) {
  PlanRequest request;
  request.ranks = 1;
  const auto tensors = llama({2048, 5632, 32, 4, 4});
  request.batch = {};
  const auto sharded = plan_for(request, tensors).total();
  request.strategy = config::ShardingStrategy::kNoShard;
  EXPECT_EQ(plan_for(request, tensors).total(), sharded);
  request.ranks = 2;
  EXPECT_GT(plan_for(request, tensors).total(), sharded) << "gradients lie beside the slots that peers read";
}

TEST_F(Plan, OnADiskGradientsTakeWhatActivationsLeaveOnlyWhereUnitsLeaveAfterForward) {
  PlanRequest request;
  request.on_disk = true;
  const auto tensors = llama({2048, 5632, 32, 4, 4});
  const auto difference = [&] {  // what a row's activations add
    request.batch = {};
    const auto without = plan_for(request, tensors).total();
    request.batch = {.rows = 1, .length = 512};
    return plan_for(request, tensors).total() - without;
  };
  EXPECT_LT(difference(), 100 << 20);
  request.strategy = config::ShardingStrategy::kShardGradOp;
  EXPECT_GT(difference(), 200 << 20);
}

TEST_F(Plan, A70BWithLoraTakesWhatEightRanksOf80GBHave) {
  auto request = lora();
  request.ranks = 8;
  request.batch = {.rows = 8, .length = 2048, .checkpointing = true};
  const auto plan = plan_for(request, llama_70b());
  // Documents: 72-80 GB on a GPU; there frozen weights lie in 32 bits (docs/guides/large_models.md).
  EXPECT_NEAR(static_cast<double>(part(plan, "frozen weights")), 2 * 68.98e9 / 8, 0.01e9);
  EXPECT_NEAR(static_cast<double>(part(plan, "activations kept for backward")), 80.0 * 8192 * 2 * 8 * 2048, 1e9);
  EXPECT_LT(plan.total(), 80e9);
}

TEST_F(Plan, A70BInFourBitsTakesWhatTheDocumentsSay) {
  auto request = lora();
  request.packed = {.bits = 4, .double_quant = true};
  request.batch = {.rows = 2, .length = 2048, .checkpointing = true};
  const auto in_memory = plan_for(request, llama_70b());
  EXPECT_NEAR(static_cast<double>(part(in_memory, "packed weights")), 68.45e9 * 4.127 / 8 / 2, 0.05e9);
  EXPECT_LT(in_memory.total(), 35.6e9) << "documents: 35.6 GB on a GPU";
  request.on_disk = true;
  EXPECT_LT(plan_for(request, llama_70b()).total(), 19.6e9) << "documents: 19.6 GB with offload";
}

TEST_F(Plan, SaysWhichFlagsMakeItFit) {
  auto request = lora("no");
  request.batch = {.rows = 2, .length = 2048, .checkpointing = false};
  const auto tensors = llama_70b();
  constexpr std::int64_t kBudget = 24'000'000'000;
  EXPECT_GT(plan_for(request, tensors).total(), kBudget);
  const auto ways = ways_to_fit(request, tensors, kBudget);
  ASSERT_FALSE(ways.empty());
  for (const auto& way : ways) EXPECT_LE(way.bytes, kBudget);
  const auto& flags = ways[0].flags;
  EXPECT_NE(std::find(flags.begin(), flags.end(), "--gradient_checkpointing true"), flags.end()) << remedy_lines(ways);
  EXPECT_TRUE(ways_to_fit(request, tensors, 1'000'000).empty()) << "nothing is as small as that";
  PlanRequest accumulates{.ranks = 8, .mixed_precision = "bf16"};
  accumulates.batch = {.rows = 1, .length = 16, .accumulation = Accumulation::kUnsharded};
  const auto slices = ways_to_fit(accumulates, tensors, 200'000'000'000);
  ASSERT_FALSE(slices.empty());
  EXPECT_EQ(slices[0].flags, std::vector<std::string>{"--sync_each_batch true"}) << remedy_lines(slices);
  const auto text = printed({"--per_device_train_batch_size", "2", "--max_seq_len", "2048", "--max_memory", "24GB"});
  EXPECT_NE(text.find("more than the 24GB of --max_memory"), std::string::npos) << text;
  EXPECT_NE(text.find("it would fit with"), std::string::npos) << text;
}

/// The flags of all ways, one a line.
std::string flags_of(const std::vector<Remedy>& ways) {
  std::string text;
  for (const auto& way : ways)
    for (const auto& flag : way.flags) text += flag + '\n';
  return text;
}

TEST_F(Plan, ASmallerBatchIsCountedWithTheAccumulationThatItAsksFor) {
  PlanRequest request;
  request.ranks = 4;
  request.batch = {.rows = 8, .length = 2048, .checkpointing = false};
  const auto tensors = llama_70b();
  auto smaller = request;
  smaller.batch.rows = 1;
  const auto without = plan_for(smaller, tensors).held();
  smaller.batch.accumulation = Accumulation::kUnsharded;
  const auto with = plan_for(smaller, tensors).held();
  ASSERT_GT(with, without);
  for (const auto budget : {without, with})
    for (const auto& way : ways_to_fit(request, tensors, budget))
      if (way.flags.size() == 1 && way.flags[0].starts_with("--per_device_train_batch_size 1")) {
        EXPECT_EQ(way.bytes, with) << way.flags[0];
      }
}

TEST_F(Plan, WaysNameAllThatTheyCount) {
  PlanRequest request;
  request.batch = {.rows = 1, .length = 128};
  const auto tensors = llama_70b();
  const auto lora = flags_of(ways_to_fit(request, tensors, 200'000'000'000));
  EXPECT_NE(lora.find("--use_peft_lora true --lora_r 8 --lora_target_modules all-linear"), std::string::npos) << lora;
  request.adapter.emplace();
  request.packed = {.bits = 8};
  const auto four_bits = flags_of(ways_to_fit(request, tensors, 30'000'000'000));
  EXPECT_NE(four_bits.find("--load_in_8bit false --load_in_4bit true"), std::string::npos) << four_bits;
}

TEST_F(Plan, EveryPartOfTheSumIsPrinted) {
  llama_70b();
  const auto text = printed({"--load_in_4bit", "--use_nested_quant", "--gradient_checkpointing", "--mixed_precision",
                             "bf16", "--per_device_train_batch_size", "2", "--max_seq_len", "2048"});
  for (const char* name : {"packed weights", "frozen weights", "activations kept for backward", "optimizer state",
                           "the program itself", "together", "at its highest in"})
    EXPECT_NE(text.find(name), std::string::npos) << name << "\n" << text;
  EXPECT_EQ(text.find("all weights"), std::string::npos) << "packed weights do not train";
  const auto without = printed({"--max_seq_len", "0"});
  EXPECT_EQ(without.find("activations kept"), std::string::npos) << without;
  EXPECT_NE(without.find("together"), std::string::npos) << without;
}

TEST_F(Plan, TheFirstTablesPeakIsTheSumOfTheSecond) {
  llama_70b();
  const auto text = printed({"--load_in_4bit", "--mixed_precision", "bf16", "--use_peft_lora", "true"});
  EXPECT_NE(text.find("--use_peft_lora has no effect"), std::string::npos) << text;
  const auto together = text.substr(text.find("together"));
  const auto sum = together.substr(0, together.find('\n'));
  const auto at = sum.find_first_of("0123456789");
  ASSERT_NE(sum.find("GiB"), std::string::npos) << sum;
  const auto number = sum.substr(at, sum.find("GiB") + 3 - at);
  EXPECT_NE(text.substr(0, text.find("part by part")).find(number), std::string::npos) << number << "\n" << text;
}

TEST_F(Plan, A405BOnThousandRanksTakesLessThanASecond) {
  llama({16384, 53248, 128, 8, 126});
  const auto start = std::clock();  // the processor's time: other programs run beside tests
  const auto text = printed({"--num_processes", "1024", "--num_machines", "128", "--mixed_precision", "bf16",
                             "--gradient_checkpointing", "--max_memory", "80GB"});
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 1.0);
  EXPECT_NE(text.find("of 128 hosts"), std::string::npos) << text;
}

TEST_F(Plan, SeveralHostsHoldSlicesOfAllAndGatherUnits) {
  const auto tensors = llama({4096, 11008, 32, 32, 32});
  PlanRequest request;
  request.mixed_precision = "bf16";
  request.ranks = 16;
  request.hosts = 2;
  const auto plan = plan_for(request, tensors);
  std::int64_t numel = 0;
  for (const auto& t : tensors) numel += t.numel();
  EXPECT_EQ(part(plan, "weights that train"), 4 * numel / 16) << "masters are the slices";
  EXPECT_EQ(part(plan, "optimizer state"), 8 * numel / 16);
  EXPECT_GT(static_cast<double>(part(plan, "gathered units")), 3 * 2 * 0.2e9)
      << "three blocks in 16 bits, and the root";
  request.strategy = config::ShardingStrategy::kShardGradOp;
  EXPECT_EQ(part(plan_for(request, tensors), "gathered units"), 2 * numel) << "until backward";
  request.strategy = config::ShardingStrategy::kHybridShard;
  EXPECT_EQ(part(plan_for(request, tensors), "optimizer state"), 8 * numel / 8) << "sharded inside a host";
}

TEST(ByteSize, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(config::parse_byte_size("24GB", "max_memory"), 24'000'000'000);
  EXPECT_EQ(config::parse_byte_size("20GiB", "max_memory"), 20LL << 30);
  EXPECT_EQ(config::parse_byte_size("1.5 gib", "max_memory"), static_cast<std::int64_t>(1.5 * kGiB));
  EXPECT_EQ(config::parse_byte_size("4096", "max_memory"), 4096);
  for (const char* bad : {"", "GB", "-1GB", "0", "24G B x", "24 apples", "nan", "1e30GB"})
    EXPECT_THROW(config::parse_byte_size(bad, "max_memory"), ConfigError) << bad;
}

}  // namespace
}  // namespace tessera::estimate
