// Adapters whose first values come from the weights: over packed bases, drawn, and saved as plain LoRA.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/pretrained.h"
#include "checkpoint/visit_dense.h"
#include "peft/methods/lora.h"
#include "support/compare.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "unit/tasks/adapted_llama.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

const std::string kGoldens = std::string(TESSERA_TEST_DATA) + "/goldens/";
json keys_of(const std::string& init) {
  return {{"peft_type", "LORA"},
          {"r", 4},
          {"lora_alpha", 4},
          {"init_lora_weights", init},
          {"target_modules", {"q_proj", "down_proj"}}};
}

peft::Values adapters(const Assembled& a) {
  return checkpoint::gather_values(*a.sharded, nn::adapter_parameters(*a.model));
}

/// Runs on one rank; the result of the last of `world`.
template <class Body>
void on_ranks(int world, const Body& body) {
  comm::run_threads(world, [&](const std::shared_ptr<comm::Communicator>& group) { body(group); });
}

TEST(Loftq, MakesGoodWhatPackingTakesFromTheWeights) {
  auto options = adapted_llama(keys_of("loftq"));
  options.quantization = families::Quantization{.quant_type = "nf4"};
  peft::Values alone;
  for (const int world : {1, 2, 3}) {
    on_ranks(world, [&](const std::shared_ptr<comm::Communicator>& group) {
      const auto a = assemble(options, group);
      const auto values = adapters(a);
      const auto source = io::open_weights(kLlama);
      checkpoint::visit_dense(
          *a.sharded, *a.model,
          [&](const std::string& name, const at::Tensor& packed) {
            const auto layer = name.substr(0, name.rfind('.'));
            const auto dense = io::read_tensor(*source, name);
            const auto update =
                at::mm(values.at(layer + ".lora_B.default.weight"), values.at(layer + ".lora_A.default.weight"));
            EXPECT_LT((dense - packed - update).norm().item<double>(), 0.95 * (dense - packed).norm().item<double>())
                << name;
            const auto s = at::linalg_svdvals(dense - packed);  // the best that a rank of 4 can do
            EXPECT_NEAR((dense - packed - update).norm().item<double>(), s.slice(0, 4).norm().item<double>(), 1e-4)
                << name;
          },
          [](const std::string& name) {
            return name.ends_with("q_proj.weight") || name.ends_with("down_proj.weight");
          });
      if (group->rank() != 0) return;
      if (world == 1) alone = values;
      for (const auto& [name, value] : alone) test::expect_close(values.at(name), value, 1e-5, name);
    });
  }
}

TEST(Loftq, IsSavedAsAnAdapterOfThePackedBase) {
  const test::TempFolder folder("loftq");
  auto options = adapted_llama(keys_of("loftq"));
  options.quantization = families::Quantization{.quant_type = "nf4"};
  on_ranks(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(options, group);
    checkpoint::save_adapter(*a.sharded, a.adapted(), {}, folder.path());
    EXPECT_EQ(json::parse(read_file(folder.path() + "/adapter_config.json")).at("init_lora_weights"), true);
    AssembleOptions saved{
        .model_folder = kLlama, .adapter_folder = folder.path(), .quantization = options.quantization};
    test::expect_close(logits_of(assemble(saved, group)), logits_of(a), 1e-6, "saved");
  });
}

/// Packing and making good take turns, as in peft's loftq_init: the base of the last turn and its factors.
class LoftqTurns : public testing::TestWithParam<int> {
 protected:
  AssembleOptions options() const {
    auto keys = keys_of("loftq");
    keys["loftq_config"] = {{"loftq_bits", 4}, {"loftq_iter", GetParam()}};
    auto options = adapted_llama(keys);
    options.quantization = families::Quantization{.quant_type = "nf4"};
    return options;
  }
};

TEST_P(LoftqTurns, AreThoseOfPeftOnOneTwoAndThreeRanks) {
  const auto expected = io::open_safetensors(std::string(TESSERA_TEST_DATA) + "/loftq/expected.safetensors");
  for (const int world : {1, 2, 3}) {
    on_ranks(world, [&](const std::shared_ptr<comm::Communicator>& group) {
      const auto a = assemble(options(), group);
      const auto values = adapters(a);
      for (const std::string layer : {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"}) {
        const auto at = std::to_string(GetParam()) + "." + layer;
        const auto update =
            at::mm(values.at(layer + ".lora_B.default.weight"), values.at(layer + ".lora_A.default.weight"));
        test::expect_close(update, io::read_tensor(*expected, at + ".update"), 1e-4, at);
        checkpoint::visit_dense(
            *a.sharded, *a.model,
            [&](const std::string&, const at::Tensor& base) {
              test::expect_close(base, io::read_tensor(*expected, at + ".base"), 1e-6, at);
            },
            [&](const std::string& name) { return name == layer + ".weight"; });
      }
    });
  }
}

TEST_P(LoftqTurns, AreTakenAgainWhereTheAdapterIsLoaded) {
  const test::TempFolder folder("loftq_turns");
  on_ranks(2, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(options(), group);
    checkpoint::save_adapter(*a.sharded, a.adapted(), {}, folder.path());
    const AssembleOptions saved{
        .model_folder = kLlama, .adapter_folder = folder.path(), .quantization = options().quantization};
    test::expect_close(logits_of(assemble(saved, group)), logits_of(a), 1e-6, "saved");
  });
}

INSTANTIATE_TEST_SUITE_P(Loftq, LoftqTurns, testing::Values(1, 2, 5));

TEST(Loftq, NeedsAPackedBase) {
  on_ranks(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    EXPECT_THROW(assemble(adapted_llama(keys_of("loftq")), group), ConfigError);
  });
}

TEST(PissaNiter, BeginsWithoutEffectAndNearTheLargestSingularValues) {
  on_ranks(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto drawn = assemble(adapted_llama(keys_of("pissa_niter_16")), group);
    const auto exact = assemble(adapted_llama(keys_of("pissa")), group);
    test::expect_close(logits_of(drawn), logits_of(assemble({.model_folder = kLlama}, group)), 1e-5, "at the start");
    const auto ours = adapters(drawn), theirs = adapters(exact);
    for (const auto& [name, a] : ours) {
      if (!name.ends_with(".lora_A.default.weight")) continue;
      const auto b = name.substr(0, name.size() - 16) + "B.default.weight";
      const double part = (at::mm(ours.at(b), a).norm() / at::mm(theirs.at(b), theirs.at(name)).norm()).item<double>();
      EXPECT_GT(part, 0.97) << name;  // of what the largest singular values hold
      EXPECT_LT(part, 1.0001) << name;
    }
  });
}

/// Each rank computes those of some weights alone.
TEST(StartsFromWeights, AreTheSameBitsOnAnyNumberOfRanks) {
  std::vector<json> methods = {
      keys_of("pissa"), keys_of("olora"), keys_of("pissa"), {{"peft_type", "PSOFT"}, {"r", 4}}};
  methods[2]["init_lora_weights"] = false;
  methods[2]["use_dora"] = true;  // its lengths are those of W + BA
  for (const json& keys : methods) {
    std::map<std::string, at::Tensor> alone;
    for (const int world : {1, 2, 3}) {
      on_ranks(world, [&](const std::shared_ptr<comm::Communicator>& group) {
        const auto values = adapters(assemble(adapted_llama(keys), group));
        if (group->rank() != 0) return;
        if (world == 1) alone = values;
        for (const auto& [name, value] : alone)
          EXPECT_TRUE(at::equal(values.at(name), value)) << keys << ": " << name << " of " << world << " ranks";
      });
    }
  }
}

/// Adapters moved as training would.
void move_adapters(const Assembled& a) {
  peft::Values moved;
  for (const auto& [name, value] : adapters(a))
    if (name.find("start") == std::string::npos) moved[name] = value * 1.2 + 0.01;
  checkpoint::write_values(*a.sharded, moved);
}

TEST(ConvertToLora, GivesAnAdapterOfTheBaseAsItIs) {
  const test::TempFolder folder("converted");
  for (const char* init : {"pissa", "olora", "pissa_niter_3"}) {
    auto keys = keys_of(init);
    keys["use_rslora"] = true;
    keys["rank_pattern"] = {{"layers.1.self_attn.q_proj", 2}};
    auto options = adapted_llama(keys);
    auto lora = std::make_shared<peft::Lora>(dynamic_cast<const peft::Lora&>(*options.method));
    lora->convert_to_lora = true;
    options.method = lora;
    at::Tensor before;
    const std::string saved = folder.path() + "/" + init;
    on_ranks(2, [&](const std::shared_ptr<comm::Communicator>& group) {
      const auto a = assemble(options, group);
      move_adapters(a);
      const auto out = logits_of(a);
      checkpoint::save_adapter(*a.sharded, a.adapted(), {}, saved);
      if (group->rank() == 0) before = out;
    });
    const auto written = json::parse(read_file(saved + "/adapter_config.json"));
    EXPECT_EQ(written.at("r"), 8);
    EXPECT_EQ(written.at("init_lora_weights"), true);
    on_ranks(1, [&](const std::shared_ptr<comm::Communicator>& group) {
      test::expect_close(logits_of(assemble({.model_folder = kLlama, .adapter_folder = saved}, group)), before, 1e-5,
                         init);
    });
  }
}

// PEFT's own conversion; the signs of the factors are LAPACK's, their product is not.
TEST(ConvertToLora, EqualsPefts) {
  const test::TempFolder folder("as_peft");
  for (const std::string run : {"llama_lora_pissa", "llama_lora_olora"}) {
    const std::string golden = kGoldens + "J_peft/" + run;
    const std::string saved = folder.path() + "/" + run;
    on_ranks(1, [&](const std::shared_ptr<comm::Communicator>& group) {
      const auto a = assemble({.model_folder = kLlama, .adapter_folder = golden + "/adapter_final"}, group);
      dynamic_cast<peft::Lora&>(*a.adapters->method).convert_to_lora = true;
      checkpoint::save_adapter(*a.sharded, a.adapted(), {}, saved);
    });
    const auto ours = io::open_weights(saved + "/adapter_model.safetensors");
    const auto theirs = io::open_weights(golden + "/adapter_final_as_lora/adapter_model.safetensors");
    ASSERT_EQ(ours->tensors().size(), theirs->tensors().size());
    for (const auto& info : theirs->tensors()) {
      if (!info.name.ends_with("lora_A.weight")) continue;
      const auto b = info.name.substr(0, info.name.size() - 8) + "B.weight";
      test::expect_close(at::mm(io::read_tensor(*ours, b), io::read_tensor(*ours, info.name)),
                         at::mm(io::read_tensor(*theirs, b), io::read_tensor(*theirs, info.name)), 1e-3, info.name);
    }
    EXPECT_EQ(json::parse(read_file(saved + "/adapter_config.json")).at("lora_alpha"),
              json::parse(read_file(golden + "/adapter_final_as_lora/adapter_config.json")).at("lora_alpha"));
  }
}

TEST(VbLora, SavesOnlyTheWeightsThatAreUsed) {
  const test::TempFolder folder("topk");
  const json keys = {{"peft_type", "VBLORA"},
                     {"r", 2},
                     {"num_vectors", 12},
                     {"vector_length", 12},
                     {"topk", 3},
                     {"save_only_topk_weights", true},
                     {"init_vector_bank_bound", 0.5},
                     {"target_modules", {"q_proj", "down_proj"}}};
  at::Tensor before;
  on_ranks(2, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(adapted_llama(keys), group);
    checkpoint::save_adapter(*a.sharded, a.adapted(), {.dtype = at::kFloat}, folder.path());
    const auto out = logits_of(a);
    if (group->rank() == 0) before = out;
  });
  const auto file = io::open_weights(folder.path() + "/adapter_model.safetensors");
  const std::string logits_a = "base_model.model.model.layers.0.self_attn.q_proj.vblora_logits_A";
  ASSERT_NE(file->find(logits_a + "_topk_indices"), nullptr);
  EXPECT_EQ(file->find(logits_a + "_topk_indices")->dtype, at::kByte);
  EXPECT_EQ(file->find(logits_a + "_topk_weights")->shape.back(), 2);
  EXPECT_EQ(file->find(logits_a), nullptr);
  on_ranks(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble({.model_folder = kLlama, .adapter_folder = folder.path()}, group);
    test::expect_close(logits_of(a), before, 1e-5, "saved");
    a.model->train();
    models::ModelInput in;
    in.input_ids = at::ones({1, 4}, at::kLong);
    EXPECT_THROW((*a.model)(in), ConfigError);
  });
}

}  // namespace
}  // namespace tessera::tasks
