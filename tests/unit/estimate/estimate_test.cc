// What a model needs: headers, the formula of a rank's memory, the tables.
#include "estimate/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "estimate/rank_memory.h"
#include "estimate/table.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

using config::ShardingStrategy;

// Four blocks of 1000, a root of 400.
std::vector<SizedParameter> small_model(bool trainable, bool stored_as_computed = true) {
  std::vector<SizedParameter> out = {{"embed.weight", 400, trainable, stored_as_computed}};
  for (const char* block : {"layers.0", "layers.1", "layers.2", "layers.3"}) {
    out.push_back({std::string(block) + ".up.weight", 600, trainable, stored_as_computed});
    out.push_back({std::string(block) + ".down.weight", 400, trainable, stored_as_computed});
  }
  return out;
}

TEST(RankMemory, ShardsEverythingButTheSlots) {
  const auto sizes = sizes_of(small_model(true));
  EXPECT_EQ(sizes.total(), 4400);
  // fp32: weights, gradients and two moments of half the model; three units and the root on their way, where the root's
  // sums stay.
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2}), 4 * (4 * 2200 - 200 + 400 + 3 * 1000));
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 4}), 4 * (4 * 1100 - 100 + 400 + 3 * 1000));
  EXPECT_EQ(rank_bytes(sizes, {.strategy = ShardingStrategy::kNoShard, .ranks = 2}), 4 * (4 * 4400 + 400 + 3 * 1000));
}

TEST(RankMemory, GradientsOfEarlierForwardsAreWholeOnEachRank) {
  const auto sizes = sizes_of(small_model(true));
  // Weights, two moments and slots as above, and all gradients in the dtype of reductions.
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp})
    EXPECT_EQ(
        rank_bytes(sizes, {.strategy = strategy, .ranks = 2, .batch = {.accumulation = Accumulation::kUnsharded}}),
        4 * (3 * 2200 + 400 + 3 * 1000 + 4400));
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2, .hosts = 2, .batch = {.accumulation = Accumulation::kUnsharded}}) -
                rank_bytes(sizes, {.ranks = 2, .hosts = 2}),
            4 * (4400 - 1100));
  const RankJob in_16_bits{.ranks = 2, .low_precision = true, .batch = {.accumulation = Accumulation::kUnsharded}};
  EXPECT_EQ(rank_bytes(sizes, in_16_bits), (4 + 8) * 2200 + 4 * 400 + 2 * 3 * 1000 + 2 * 4400);
}

TEST(RankMemory, RanksOfAHostShareTheProgram) {
  constexpr std::int64_t kMiB = 1 << 20;
  EXPECT_EQ(program_bytes(1, /*forked=*/true), 176 * kMiB);  // one is not forked
  EXPECT_EQ(program_bytes(1, /*forked=*/false), 176 * kMiB);
  EXPECT_EQ(program_bytes(2, /*forked=*/true), 91 * kMiB);
  EXPECT_EQ(program_bytes(2, /*forked=*/false), 133 * kMiB);
}

TEST(RankMemory, TheHeadsGradientIsApartUntilItMayBeAddedToEarlierOnes) {
  const auto sizes = sizes_of(small_model(true));  // the root is a head of 20 by 20
  const RankJob job{.ranks = 2, .batch = {.accumulation = Accumulation::kUnsharded}};
  RankJob with_head = job;
  with_head.activations = {.hidden = 20, .classes = 20};
  EXPECT_EQ(rank_bytes(sizes, with_head), rank_bytes(sizes, job) + 4 * 400);
  with_head.batch = {};
  EXPECT_EQ(rank_bytes(sizes, with_head), rank_bytes(sizes, {.ranks = 2}));
}

TEST(RankMemory, SumsOfEarlierForwardsAreSlices) {
  const auto sizes = sizes_of(small_model(true));
  const BatchShape summed{.accumulation = Accumulation::kSharded};
  // The root's sums are not where the next backward's gradients come, as they are in a step of one batch.
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2, .batch = summed}), rank_bytes(sizes, {.ranks = 2}) + 4 * 200);
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2, .hosts = 2, .batch = summed}), rank_bytes(sizes, {.ranks = 2, .hosts = 2}));
  EXPECT_EQ(accumulation_of(1, true, 2), Accumulation::kNone);
  EXPECT_EQ(accumulation_of(2, false, 2), Accumulation::kUnsharded);
  EXPECT_EQ(accumulation_of(2, true, 2), Accumulation::kSharded);
  EXPECT_EQ(accumulation_of(2, false, 1), Accumulation::kSharded);
}

TEST(RankMemory, LogitsAreThereInChunksButForAHeadWithAnAdapter) {
  const std::vector<ModelTensor> tensors = {{"model.layers.0.self_attn.o_proj.weight", {64, 64}, "F32"},
                                            {"lm_head.weight", {5000, 64}, "F32"}};
  const BatchShape batch{.rows = 2, .length = 100};
  const std::int64_t tokens = 200;
  auto shape = activation_shape(tensors);
  const auto loss = [&](std::int64_t compute_bytes) { return activation_bytes(shape, {}, batch, compute_bytes).loss; };
  // The hidden states' gradient; a sum, the label's weight, in 16 bits a product, and a chunk of logits.
  EXPECT_EQ(loss(4), tokens * (4 * 64 + (4 + 4) * 64 + 4 * 1024));
  EXPECT_EQ(loss(2), tokens * (2 * 64 + (4 + 2 + 2) * 64 + 2 * 1024));
  shape.packed_head = true;  // a chunk of weights, too
  EXPECT_EQ(loss(4), tokens * (4 * 64 + (4 + 4) * 64 + 4 * 1024) + 4 * 1024 * 64);
  shape.packed_head = false, shape.head_trains = true;  // 64 rows, or 136 of which the logits are kept
  EXPECT_EQ(loss(4), tokens * 4 * 64 + 136 * (4 * 64 + 4 * 1024 + 4 * 5000));
  shape.head_trains = false, shape.whole_logits = true;
  EXPECT_EQ(loss(4), tokens * 4 * 64 + 3 * 4 * tokens * 5000);
}

TEST(RankMemory, LargeParametersOfTheRootTakeTurnsUnlessTheyComeFirstAndAreLarger) {
  constexpr std::int64_t kMillion = 1 << 20;
  const auto slots = [](std::int64_t embedding, std::int64_t head) {
    std::vector<SizedParameter> model = {{"embed.weight", embedding}};
    for (const char* block : {"layers.0", "layers.1", "layers.2", "layers.3"})
      model.push_back({std::string(block) + ".weight", kMillion});
    model.push_back({"norm.weight", 100});
    if (head > 0) model.push_back({"head.weight", head});
    const auto sizes = sizes_of(model);
    return std::vector{sizes.ring, sizes.root_rest, sizes.tables_apart};
  };
  using Elements = std::vector<std::int64_t>;
  EXPECT_EQ(slots(2 * kMillion, 2 * kMillion), (Elements{3 * kMillion, 100, 0}));
  EXPECT_EQ(slots(8 * kMillion, 8 * kMillion), (Elements{8 * kMillion, 100, 0}));
  EXPECT_EQ(slots(8 * kMillion, 0), (Elements{3 * kMillion, 100, 8 * kMillion}))
      << "perhaps tied: open from forward on";
}

TEST(RankMemory, LowPrecisionHalvesWhatIsComputedWithAndKeepsWhatMastersHaveBeside) {
  const auto sizes = sizes_of(small_model(true, false));
  const std::int64_t others = 4 * (3 * 2200 - 200) + 4 * 400 + 2 * 3 * 1000;
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2, .low_precision = true}), (2 + 2) * 2200 + others);
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2, .low_precision = true, .whole_masters = true}), (2 + 4) * 2200 + others);
}

TEST(RankMemory, ATableApartWaitsInSixteenBitsWhereItsSumDoesNotStay) {
  constexpr std::int64_t kTable = 8 << 20;
  auto parameters = small_model(true, false);
  parameters.insert(parameters.begin(), {"embed.weight", kTable, true, false});
  const auto with = sizes_of(parameters), without = sizes_of(small_model(true, false));
  const auto more = [&](const RankJob& job) { return rank_bytes(with, job) - rank_bytes(without, job); };
  EXPECT_EQ(more({.ranks = 2}), (4 * 4 / 2 - 4 / 2 + 4) * kTable) << "in fp32 the sum stays in the slot";
  EXPECT_EQ(more({.ranks = 4, .low_precision = true}), (2 + 2 + 3 * 4) * kTable / 4 + 2 * kTable);
  EXPECT_EQ(more({.ranks = 1, .low_precision = true}), (2 + 2 + 2 * 4 + 4) * kTable)
      << "as wide as its sum, which stays";
}

TEST(RankMemory, OffloadingLeavesGradientsBesideTheRootOrAPieceOfAnUpdate) {
  const auto sizes = sizes_of(small_model(true));
  const std::int64_t wide = 4 * (400 + 3 * 1000), narrow = 4 * 400 + 2 * 3 * 1000, piece = 3 * 4 * 1000 / 2;
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2, .on_disk = true}), 4 * (2200 - 200) + wide + piece);
  EXPECT_EQ(rank_bytes(sizes, {.ranks = 2, .low_precision = true, .on_disk = true}), 4 * (2200 - 200) + narrow + piece);
  const auto kept = ShardingStrategy::kShardGradOp;
  EXPECT_EQ(rank_bytes(sizes, {.strategy = kept, .ranks = 2, .on_disk = true}),
            rank_bytes(sizes, {.ranks = 2, .on_disk = true}))
      << "what is kept leaves while gradients come";
  const auto whole = ShardingStrategy::kNoShard;  // the weights, which in fp32 are the masters
  EXPECT_EQ(rank_bytes(sizes, {.strategy = whole, .ranks = 2, .on_disk = true}),
            4 * 4400 + wide + 4 * 4400 + 2 * 4 * 1000);
  EXPECT_EQ(rank_bytes(sizes, {.strategy = whole, .ranks = 2, .low_precision = true, .on_disk = true}),
            4 * 4400 + narrow + 2 * 4400 + 3 * 4 * 1000);
}

TEST(RankMemory, OnADiskOnlyRowsAreReadOfATableThatNoHeadIsTiedTo) {
  constexpr std::int64_t kTable = 8 << 20;
  const auto bytes = [](bool head) {
    auto parameters = small_model(true);
    parameters.insert(parameters.begin(), {"embed.weight", kTable});
    if (head) parameters.push_back({"head.weight", kTable});
    return rank_bytes(sizes_of(parameters), {.ranks = 2, .on_disk = true});
  };
  // Either way one table's rows are all read: the head's, or the tied one's. Its sum stays in its slot.
  EXPECT_EQ(bytes(true) - bytes(false), 4 * kTable / 2 + 4 * kTable - 4 * (3 * 1000 + kTable) + 4 * kTable / 2);
}

TEST(RankMemory, OnADiskAFrozenBaseIsWholeAtTheEndOfForwardWhereItIsKept) {
  auto parameters = small_model(false);
  parameters.push_back({"layers.0.up.lora_A", 10, true, true});
  const auto sizes = sizes_of(parameters);
  const auto bytes = [&](ShardingStrategy strategy) {
    return rank_bytes(sizes, {.strategy = strategy, .ranks = 2, .on_disk = true});
  };
  const std::int64_t slots = 4 * 10, adapter = 4 * 10 / 2;
  EXPECT_EQ(bytes(ShardingStrategy::kShardGradOp), slots + 4 * 4400 / 2 + adapter);
  EXPECT_EQ(bytes(ShardingStrategy::kFullShard), slots + 4 * (400 + 2 * 1010) / 2) << "gradients take less than units";
}

TEST(FramedTable, GrowsItsLastColumnForALongTitle) {
  EXPECT_EQ(framed_table("a title", {"x", "y"}, {{"1", "22"}}),
            "┌───────┐\n│a title│\n├─┬─────┤\n│x│  y  │\n├─┼─────┤\n│1│ 22  │\n└─┴─────┘\n");
}

class Estimate : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
  }
  static std::string print(const std::vector<std::string>& args) {
    std::ostringstream out;
    const auto options = parse_estimate(args, out);
    print_estimate(*options, read_model_tensors(options->model), out);
    return out.str();
  }
  const test::TempFolder temporary_{"estimate"};
  const std::string& folder_ = temporary_.path();
};

const std::string kLlama = std::string(TESSERA_TEST_DATA) + "/fsdp_runs/base_llama";
const std::string kGguf = std::string(TESSERA_TEST_DATA) + "/gguf/llama.gguf";

std::int64_t elements(const std::vector<ModelTensor>& tensors) {
  std::int64_t sum = 0;
  for (const auto& t : tensors) sum += t.numel();
  return sum;
}

TEST_F(Estimate, ReadsHeadersOfSafetensorsAndGguf) {
  const auto llama = read_model_tensors(kLlama);
  EXPECT_EQ(elements(llama), elements(read_model_tensors(kLlama + "/model.safetensors")));
  const auto same = read_model_tensors(std::string(TESSERA_TEST_DATA) + "/gguf/llama.safetensors");
  constexpr std::int64_t kLogits = 2 * 10 * 24;  // which that file holds, too
  EXPECT_EQ(elements(read_model_tensors(kGguf)), elements(same) - kLogits);
}

TEST_F(Estimate, PrintsAcceleratesTableAndTheStrategies) {
  const std::string text = print({kLlama, "--dtypes", "float32", "float16", "--num_processes", "2"});
  for (const char* part : {"Memory Usage for loading `", "Largest Layer", "Training using Adam", "float16",
                           "FULL_SHARD", "NO_SHARD", "offloaded to a disk", "LoRA, r 8"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("int8"), std::string::npos) << text;
}

// As many as PEFT's models of tests/data/goldens/J_peft train.
TEST_F(Estimate, CountsWhatEachMethodTrains) {
  const auto trains = [&](const std::string& base, std::vector<std::string> flags) {
    flags.insert(flags.begin(), std::string(TESSERA_TEST_DATA) + "/goldens/B_train/" + base);
    const std::string text = print(flags), word = " trains ";
    const auto begin = text.find(word) + word.size();
    return text.substr(begin, text.find(' ', begin) - begin);
  };
  EXPECT_EQ(trains("base_llama", {"--peft_type", "IA3", "--target_modules", "k_proj,v_proj,down_proj",
                                  "--feedforward_modules", "down_proj"}),
            "120");
  EXPECT_EQ(trains("base_t5", {"--peft_type", "IA3", "--target_modules", "k,v,wo", "--feedforward_modules", "wo"}),
            "544");
  EXPECT_EQ(trains("base_llama", {"--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "5"}), "120");
  EXPECT_EQ(trains("base_t5", {"--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "4"}), "192");
  EXPECT_EQ(trains("base_llama", {"--peft_type", "PREFIX_TUNING", "--num_virtual_tokens", "4"}), "192");
  EXPECT_EQ(trains("base_llama", {"--peft_type", "LN_TUNING"}), "120");
  const auto tokens = [&](const std::string& base, const std::string& targets, const char* args) {
    return trains(base, {"--peft_type", "TRAINABLE_TOKENS", "--target_modules", targets, "--peft_args", args});
  };
  EXPECT_EQ(tokens("base_llama", "all-linear", "token_indices=[90,5,77]"), "72");
  EXPECT_EQ(tokens("base_llama", "embed_tokens,lm_head", "token_indices=[90,5,77]"), "144");
  EXPECT_THROW(tokens("base_llama", "q_proj", "token_indices=[90,5,77]"), ConfigError);
  EXPECT_THROW(tokens("base_llama", "all-linear", "token_indices=[]"), ConfigError);
  EXPECT_THROW(tokens("base_llama", "all-linear", "r=4"), ConfigError);
  EXPECT_EQ(trains("base_t5",
                   {"--peft_type", "P_TUNING", "--num_virtual_tokens", "3", "--peft_args", "encoder_hidden_size=16"}),
            "1,224");
  const auto lora = [&](const char* args) {
    return trains("base_llama", {"--lora_r", "2", "--target_modules", "q_proj", "--peft_args", args});
  };
  EXPECT_EQ(lora("layer_replication=[[0,2],[0,2],[1,2]]"), "480") << "five places";
  EXPECT_EQ(lora("r=2"), "192");
  EXPECT_THROW(lora("layer_replication=[[0,3]]"), ConfigError);
  const std::vector<std::tuple<const char*, const char*, const char*>> in_layers = {
      {"LOHA", "r=4", "2,304"},
      {"LOKR", "r=2", "240"},
      {"LOKR", "r=1,decompose_both=true", "118"},
      {"VERA", "r=16", "216"},
      {"VBLORA", "r=2,num_vectors=14,vector_length=12", "840"},
      {"RANDLORA", "r=5", "682"},
      {"FOURIERFT", "n_frequency=40", "240"},
      {"MISS", "r=4", "480"},
      {"HRA", "r=4", "672"},
      {"OFT", "oft_block_size=4", "252"},
      {"OFT", "r=3,oft_block_size=0", "732"},
      {"BOFT", "boft_block_size=2,boft_n_butterfly_factor=2", "792"},
      {"DELORA", "r=2", "582"},
      {"GRALORA", "r=2,hybrid_r=3", "1,440"},
      {"C3A", "block_size=4", "864"},
      {"HIRA", "r=2", "576"},
      {"BEFT", "init_weights=true", "120"},
      {"PVERA", "r=16", "312"},
      {"UNILORA", "theta_d_length=50", "50"},
      {"PSOFT", "r=4", "84"},
      {"PSOFT", "r=4,psoft_orth=false,psoft_mag_a=False", "120"},
      {"ROAD", "group_size=4", "120"},
      {"ROAD", "group_size=4,variant=road_4", "480"},
      {"SHIRA", "r=3", "864"},
      {"WAVEFT", "n_frequency=40", "240"}};
  for (const auto& [type, args, expected] : in_layers)
    EXPECT_EQ(
        trains("base_llama", {"--peft_type", type, "--target_modules", "q_proj,v_proj,down_proj", "--peft_args", args}),
        expected)
        << type << " " << args;
}

TEST_F(Estimate, AConfigAloneSaysWhatTheWeightsWould) {
  std::filesystem::copy_file(kLlama + "/config.json", folder_ + "/config.json");
  const auto sorted = [](std::vector<ModelTensor> tensors) {
    std::map<std::string, std::pair<std::vector<std::int64_t>, std::string>> out;
    for (const auto& t : tensors) out[t.name] = {t.shape, t.dtype};
    return out;
  };
  EXPECT_EQ(sorted(read_model_tensors(folder_)), sorted(read_model_tensors(kLlama)));
}

TEST_F(Estimate, LeavesOutATiedHead) {
  const std::string header = R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                             R"("lm_head.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  write("model.safetensors", file + header + std::string(16, '\0'));
  write("config.json", R"({"tie_word_embeddings": true})");
  EXPECT_EQ(read_model_tensors(folder_).size(), 1u);
  write("config.json", R"({"tie_word_embeddings": false})");
  EXPECT_EQ(read_model_tensors(folder_).size(), 2u);
}

TEST_F(Estimate, ErrorsNameWhatIsWrong) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const auto read = [&](const std::string& path) { return message([&] { read_model_tensors(path); }); };
  EXPECT_NE(read("t5-base").find("'t5-base' does not exist"), std::string::npos);
  EXPECT_NE(read(folder_).find("holds no model; looked for model.safetensors"), std::string::npos);
  write("config.json", R"({"model_type": "llamma"})");
  EXPECT_NE(read(folder_).find("did you mean 'llama'"), std::string::npos);
  write("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_NE(read(folder_).find("gone.safetensors"), std::string::npos);
  write("huge.safetensors", std::string("\x44\0\0\0\0\0\0\0", 8) +
                                R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}})"
                                "\0\0\0\0");
  EXPECT_FALSE(read(folder_ + "/huge.safetensors").empty());
  const auto parse = [&](const std::vector<std::string>& args) { return message([&] { print(args); }); };
  EXPECT_NE(parse({kLlama, "--lora_target_modules", "q_prj"}).find("there are"), std::string::npos);
  EXPECT_NE(parse({kLlama, "--dtypes", "float8"}).find("--dtypes expects one of float32"), std::string::npos);
  EXPECT_NE(parse({kLlama, "--num_processes", "0"}).find("--num_processes"), std::string::npos);
}

}  // namespace
}  // namespace tessera::estimate
