// Adapters over every form of packed base, in decoders, encoder-decoders and encoders: sharded training is unsharded
// training and training over the values, a run goes on bit for bit, bytes stay what they were, and what is merged
// computes what was trained.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "models/gguf_model.h"
#include "peft/adapter_config.h"
#include "support/grouped_llama.h"
#include "support/temp_folder.h"
#include "tasks/export.h"
#include "tasks/init_model.h"
#include "tasks/merge.h"
#include "tessera/checkpoint/state.h"
#include "unit/tasks/adapter_runs.h"

namespace tessera::tasks::packed_bases {
namespace {

using namespace adapter_runs;
using nlohmann::json;

const std::string kGgufBase = std::string(TESSERA_TEST_DATA) + "/gguf/k_quants.gguf";

/// A base that is packed: as a file has it, made of a dense folder, or of random codes.
struct Base {
  std::string name;
  std::string folder = {};         // as it is; or dense, and packed to `type`
  std::string type = {};           // nf4, int8; q8_0: a GGUF file of that, its output head too
  test::GroupedForm grouped = {};  // where there is no folder
  bool is_int8() const { return type == "int8"; }
};

void PrintTo(const Base& base, std::ostream* out) {
  *out << base.name;
}

std::string dense_base(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/goldens/B_train/" + name;
}

const std::vector<Base> kBases = {
    {"gguf", kGgufBase},
    {"gguf_head", {}, "q8_0"},
    {"gptq32", {}, {}, {"gptq", 32}},
    {"gptq64act", {}, {}, {"gptq", 64, true}},
    {"gptq128act", {}, {}, {"gptq", 128, true}},
    {"awq32", {}, {}, {"awq", 32}},
    {"awq64", {}, {}, {"awq", 64}},
    {"awq128", {}, {}, {"awq", 128}},
    {"int8_llama", dense_base("base_llama"), "int8"},
    {"nf4_t5", dense_base("base_t5"), "nf4"},
    {"int8_t5", dense_base("base_t5"), "int8"},
    {"nf4_bert", dense_base("base_bert"), "nf4"},
    {"int8_bert", dense_base("base_bert"), "int8"},
};

/// Folders that a test makes: the packed base, and one of its values.
struct Folders {
  explicit Folders(const Base& base) : packed(base.folder) {
    if (base.type == "q8_0") {
      packed = files.path() + "/packed.gguf";
      write_gguf_file();
    } else if (base.folder.empty()) {
      packed = files.path() + "/packed";
      test::write_grouped_llama(packed, base.grouped);
    } else if (!base.type.empty()) {
      packed = files.path() + "/packed";
      write(base.folder, packed, {.type = base.type, .settings = {.double_quant = base.type == "nf4"}});
    }
    dense = files.path() + "/dense";
    write(packed, dense, {});
  }
  static void write(const std::string& from, const std::string& to, const PackFlags& flags) {
    write_model({.model_folder = from,
                 .adapter_folder = {},
                 .output = to,
                 .dtype = checkpoint::WeightDtype::kFloat32,
                 .packed = flags},
                comm::make_solo());
  }
  void write_gguf_file() {
    const std::string model = files.path() + "/model", config = files.path() + "/config";
    std::filesystem::copy(std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/chatml", config);
    const json sizes = {{"architectures", {"LlamaForCausalLM"}},
                        {"model_type", "llama"},
                        {"vocab_size", 2048},
                        {"hidden_size", 64},
                        {"intermediate_size", 96},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"max_position_embeddings", 64},
                        {"rms_norm_eps", 1e-6},
                        {"tie_word_embeddings", false}};
    write_file_atomically(config + "/config.json", sizes.dump());
    std::ostringstream out, err;
    ASSERT_EQ(init_model({config, model}, out, err), 0) << err.str();
    ASSERT_EQ(export_checkpoint({model, packed, "--gguf", "q8_0"}, out, err), 0) << err.str();
  }
  test::TempFolder files{"packed_bases"};
  std::string packed, dense;
};

AssembleOptions over(const std::string& folder, const Layout& layout = {}) {
  return laid_out(
      {.model_folder = folder,
       .method = peft::read_peft_keys({{"peft_type", "LORA"}, {"r", 4}, {"target_modules", "all-linear"}}, "the test")},
      layout);
}

/// Options whose runs can compare what the ranks hold of packed weights with what the base has.
struct Watched {
  explicit Watched(AssembleOptions o) : options(std::move(o)) {
    options.before_sharding = [this](const Assembled&, const fsdp::FsdpOptions& of) {
      const std::lock_guard<std::mutex> lock(mutex);
      seen[std::this_thread::get_id()] = of;
    };
  }
  /// Byte for byte.
  void expect_payload(const RankRun& rank) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto of = seen.at(std::this_thread::get_id());
    lock.unlock();
    std::set<std::string> packed;
    for (const auto& shard : rank.a.sharded->shards())
      if (shard.packed) packed.insert(shard.name);
    EXPECT_FALSE(packed.empty());
    EXPECT_EQ(packed.contains("lm_head.weight"), options.model_folder.ends_with("/packed.gguf"));
    rank.a.sharded->visit_full(
        [&](const std::string& name, const at::Tensor& tensor) {
          if (!packed.contains(name)) return;
          const auto stored = at::empty({static_cast<std::int64_t>(tensor.nbytes())}, at::kByte);
          of.source->read_bytes(of.source_name(name), 0, stored);
          EXPECT_EQ(std::memcmp(stored.const_data_ptr(), tensor.contiguous().const_data_ptr(), tensor.nbytes()), 0)
              << name << " on rank " << rank.group->rank() << " of " << rank.group->size();
        },
        [&](const std::string& name) { return packed.contains(name); });
  }
  AssembleOptions options;
  std::mutex mutex;
  std::map<std::thread::id, fsdp::FsdpOptions> seen;
};

class PackedBases : public testing::TestWithParam<Base> {};

TEST_P(PackedBases, ShardedIsUnshardedAndAsOverTheValues) {
  const Folders folders(GetParam());
  const auto alone = train(over(folders.packed), 1);
  EXPECT_GT(alone.norms[0], 0);
  auto dense = train(over(folders.dense), 1);
  if (GetParam().is_int8()) dense.outputs = alone.outputs;  // inference rounds its inputs to 8 bits, too
  expect_same_run(alone, dense, "dense");
  const std::vector<Layout> layouts = {{1, kFullShard},   {2, kFullShard}, {3, kFullShard},      {2, kShardGradOp},
                                       {3, kShardGradOp}, {2, kNoShard},   {4, kHybridShard, 2}, {3, kNoShard}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    Watched watched(over(folders.packed, layouts[i]));
    if (i % 2 == 1) watched.options.fsdp.gather = fsdp::GatherForm::kCopy;
    const auto look_at = [&](const RankRun& rank) { watched.expect_payload(rank); };
    expect_same_run(train(watched.options, layouts[i].world, {.look_at = look_at}), alone, text_of(layouts[i]));
  }
}

TEST_P(PackedBases, GoesOnBitForBitAndOnOtherRanks) {
  const Folders folders(GetParam());
  const auto two = over(folders.packed, {2, kFullShard}), three = over(folders.packed, {3, kShardGradOp});
  const auto straight = train(two, 2);
  expect_equal_run(train_in_halves(two, 2, two, 2, folders.files.path() + "/same"), straight, "resumed");
  expect_same_run(train_in_halves(two, 2, three, 3, folders.files.path() + "/other"), straight, "on three ranks");
}

TEST_P(PackedBases, SavesTheSameBytesAndMergesWhatWasTrained) {
  const Folders folders(GetParam());
  const auto place = [&](const std::string& name) { return folders.files.path() + "/" + name; };
  const auto run = train(over(folders.packed, {2, kFullShard}), 2,
                         {.adapter = place("adapter"), .look_at = [&](const RankRun& rank) {
                            checkpoint::save_weights(*rank.a.sharded, place("saved.safetensors"));
                          }});
  const auto with_adapter = [&](const std::string& base, const Layout& layout) {
    auto options = over(base, layout);
    options.method = nullptr;
    options.adapter_folder = place("adapter");
    return options;
  };
  Watched three(with_adapter(folders.packed, {3, kShardGradOp}));
  comm::run_threads(3, [&](const std::shared_ptr<comm::Communicator>& group) {
    RankRun rank(three.options, group);
    checkpoint::load_weights(*rank.a.sharded, place("saved.safetensors"));
    three.expect_payload(rank);
    if (group->rank() == 0)
      test::expect_close(rank.outputs(), run.outputs, 1e-5, "loaded by three ranks");
    else
      rank.outputs();
  });
  comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
    write_model({.model_folder = folders.packed,
                 .adapter_folder = place("adapter"),
                 .output = place("merged"),
                 .dtype = checkpoint::WeightDtype::kFloat32},
                group);
  });
  // The inference of int8 rounds its inputs, so there the adapter over the values is what merging gives.
  const auto expected =
      GetParam().is_int8() ? RankRun(with_adapter(folders.dense, {}), comm::make_solo()).outputs() : run.outputs;
  test::expect_close(outputs_of(assemble({.model_folder = place("merged")}, comm::make_solo())), expected, 1e-4,
                     "merged");
}

INSTANTIATE_TEST_SUITE_P(Forms, PackedBases, testing::ValuesIn(kBases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::tasks::packed_bases
