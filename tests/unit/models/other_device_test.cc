// Models whose parameters and batches are not on the CPU: every tensor that a module makes follows them, and losses and
// gradients are the CPU's.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/generation.h"
#include "models/model.h"
#include "quant/int8_codec.h"
#include "support/compare.h"
#include "support/fake_device.h"
#include "support/temp_folder.h"
#include "tensor/rng.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/linear.h"

namespace tessera::models {
namespace {

struct DeviceCase {
  std::string model;
  std::string inputs;  // "padded", "holes", "documents"
  bool recompute = false;
  at::ScalarType dtype = at::kFloat;
  std::string changes = {};  // of config.json, as JSON; with them weights are random
};

void PrintTo(const DeviceCase& c, std::ostream* out) {
  *out << c.model << ", " << c.inputs << (c.recompute ? ", recomputed" : "") << ", " << c10::toString(c.dtype)
       << c.changes;
}

class OtherDeviceModel : public testing::TestWithParam<DeviceCase> {
 protected:
  struct Loaded {
    std::shared_ptr<Model> model;
    ModelConfig config;
  };
  Loaded load(at::Device device) const {
    Loaded out;
    const auto folder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/" + GetParam().model;
    if (GetParam().changes.empty()) {
      out.model = build_model(folder, &out.config);
      load_weights(*out.model, *io::open_weights(folder));
    } else {
      const test::TempFolder changed("other_device");
      auto config = nlohmann::json::parse(std::ifstream(folder + "/config.json"));
      config.merge_patch(nlohmann::json::parse(GetParam().changes));
      std::ofstream(changed.path() + "/config.json") << config.dump();
      out.model = build_model(changed.path(), &out.config);
      init_weights(*out.model, 3);
    }
    out.model->to(device, GetParam().dtype);
    return out;
  }

  ModelInput batch(const ModelConfig& config, at::Device device) const {
    ModelInput in;
    const auto& kind = GetParam().inputs;
    in.input_ids = (torch::arange(24, at::kLong).view({3, 8}) * 7).remainder(17) + 3;
    if (kind == "padded") in.attention_mask = torch::arange(8).lt(torch::tensor({8, 5, 6}).unsqueeze(1)).to(at::kLong);
    if (kind == "holes") in.attention_mask = torch::arange(24).view({3, 8}).remainder(5).ne(2).to(at::kLong);
    if (kind == "documents") in.position_ids = torch::arange(8).remainder(3).unsqueeze(0).expand({3, 8}).contiguous();
    in.labels = config.kind == ModelKind::kSeq2Seq                  ? torch::arange(15, at::kLong).view({3, 5}) + 3
                : config.kind == ModelKind::kSequenceClassification ? torch::tensor({1, 0, 1}, at::kLong)
                                                                    : in.input_ids.clone();
    if (in.attention_mask.defined() && in.labels.sizes() == in.input_ids.sizes())
      in.labels.masked_fill_(in.attention_mask.eq(0), -100);
    for (auto* t : {&in.input_ids, &in.attention_mask, &in.position_ids, &in.labels})
      if (t->defined()) *t = t->to(device);
    in.want_logits = false;
    if (config.kind == ModelKind::kCausal) in.embedding_noise = 5;
    return in;
  }
};

TEST_P(OtherDeviceModel, TrainsLikeOnTheCpu) {
  std::vector<std::string> names;
  const auto run = [&](at::Device device, bool keyed) {
    auto [model, config] = load(device);
    model->train();
    if (GetParam().recompute) {
      nn::set_checkpointing(*model, [&](const std::string&, const nn::HookedModule& m) {
        return m.class_name() == config.no_split_classes.front();
      });
    }
    tensor::manual_seed(5);
    auto in = batch(config, device);
    if (keyed) in.row_ids = torch::tensor({7, 70, 700}, at::kLong).to(device), in.first_draw = 40;
    std::vector<at::Tensor> out{(*model)(in).loss};
    out[0].backward();
    EXPECT_EQ(out[0].device(), device);
    names = {"loss"};
    for (const auto& p : model->named_parameters()) {
      names.push_back(p.key());
      EXPECT_EQ(p.value().device(), device);
      out.push_back(p.value().grad());
    }
    return out;
  };
  const bool narrow = GetParam().dtype != at::kFloat;
  for (const bool keyed : {false, true}) {
    const auto here = run(at::kCPU, keyed), there = run(test::fake_device(), keyed);
    double largest = 0;
    for (std::size_t i = 1; i < here.size(); ++i)
      if (here[i].defined()) largest = std::max(largest, here[i].abs().max().item<double>());
    test::expect_close(there[0].cpu(), here[0], narrow ? 2e-2 : 1e-5, "loss");
    for (std::size_t i = 1; i < here.size(); ++i) {
      const auto mine = there[i].defined() ? there[i].cpu() : at::zeros_like(here[i].defined() ? here[i] : here[0]);
      const auto expected = here[i].defined() ? here[i] : at::zeros_like(mine);
      // A key's bias changes no probability: what stands in its gradient is rounding, which is measured by the others'.
      const double scale = narrow ? largest : std::max(expected.abs().max().item<double>(), 1e-3 * largest);
      const double worst = (mine.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
      EXPECT_LE(worst, (narrow ? 5e-2 : 1e-4) * scale) << names[i] << (keyed ? ", keyed" : "");
    }
  }
}

const char* const kExpertsOf24 = R"({"moe_intermediate_size": 24, "num_experts": 60})";  // more than choices
const char* const kDynamicRope =
    R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2, "attention_dropout": 0.3})";
const char* const kLongRope =
    R"({"rope_scaling": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 2,
        "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 5.0]}})";
const char* const kBloom = R"({"model_type": "bloom", "architectures": ["BloomForCausalLM"], "n_layer": 2, "n_head": 3,
        "attention_dropout": 0.2, "hidden_dropout": 0.1})";
const char* const kRelative = R"({"position_embedding_type": "relative_key_query", "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.2})";

INSTANTIATE_TEST_SUITE_P(
    Families, OtherDeviceModel,
    testing::Values(
        DeviceCase{"llama_gqa_rope3", "padded"}, DeviceCase{"llama_gqa_rope3", "documents"},
        DeviceCase{"llama_gqa_rope3", "padded", true}, DeviceCase{"llama_gqa_rope3", "padded", false, at::kBFloat16},
        DeviceCase{"gemma2", "holes"}, DeviceCase{"gemma3", "documents"}, DeviceCase{"olmo2", "padded"},
        DeviceCase{"granite", "documents"}, DeviceCase{"starcoder2", "documents"}, DeviceCase{"qwen3_moe", "padded"},
        DeviceCase{"mixtral", "padded"}, DeviceCase{"gpt2", "plain"},
        DeviceCase{"mixtral", "padded", false, at::kBFloat16}, DeviceCase{"mixtral", "padded", true, at::kBFloat16},
        DeviceCase{"qwen3_moe", "padded", false, at::kBFloat16, kExpertsOf24},
        DeviceCase{"qwen2_moe", "holes", false, at::kBFloat16, kExpertsOf24}, DeviceCase{"opt_postnorm_proj", "padded"},
        DeviceCase{"falcon_new", "holes"}, DeviceCase{"t5_v1_0", "padded"}, DeviceCase{"t5_v1_1", "holes"},
        DeviceCase{"t5_v1_0", "padded", true}, DeviceCase{"t5_v1_1", "padded", false, at::kBFloat16},
        DeviceCase{"bert_mlm", "padded"}, DeviceCase{"roberta_cls", "padded"}, DeviceCase{"distilbert_mlm", "padded"},
        DeviceCase{"electra_cls", "holes"}, DeviceCase{"deberta_v2_cls", "holes"},
        DeviceCase{"deberta_v2_mlm", "padded", true}, DeviceCase{"deberta_mlm", "padded"},
        DeviceCase{"stablelm_qk_norm", "documents"},
        DeviceCase{"llama_gqa_rope3", "documents", false, at::kFloat, kDynamicRope},
        DeviceCase{"llama_gqa_rope3", "padded", true, at::kFloat, kDynamicRope},
        DeviceCase{"llama_gqa_rope3", "documents", false, at::kFloat, kLongRope},
        DeviceCase{"llama_gqa_rope3", "padded", false, at::kFloat, kBloom},
        DeviceCase{"llama_gqa_rope3", "holes", false, at::kFloat, kBloom},
        DeviceCase{"bert_mlm", "holes", false, at::kFloat, kRelative}));

TEST(OtherDeviceExperts, TheHostWaitsAsOftenForManyAsForFewAndNeverInBf16) {
  const auto waits_with = [](int experts, bool keyed, at::ScalarType dtype = at::kFloat, int layers = 2) {
    const test::TempFolder changed("other_device");
    auto config =
        nlohmann::json::parse(std::ifstream(std::string(TESSERA_TEST_DATA) + "/goldens/A_models/mixtral/config.json"));
    config["num_local_experts"] = experts;
    config["num_hidden_layers"] = layers;
    std::ofstream(changed.path() + "/config.json") << config.dump();
    const auto model = build_model(changed.path(), nullptr);
    init_weights(*model, 3);
    model->to(test::fake_device(), dtype);
    ModelInput in;
    in.input_ids = (torch::arange(24, at::kLong).view({3, 8}) * 7).remainder(17).to(test::fake_device());
    in.labels = in.input_ids.clone();
    if (keyed) in.row_ids = torch::tensor({7, 70, 700}, at::kLong).to(test::fake_device());
    const auto before = test::fake_device_waits();
    (*model)(in).loss.backward();
    return test::fake_device_waits() - before;
  };
  for (const bool keyed : {false, true}) {
    const auto few = waits_with(2, keyed);
    EXPECT_GT(few, 0);
    EXPECT_EQ(waits_with(6, keyed), few) << keyed;
    EXPECT_GT(waits_with(2, keyed, at::kFloat, /*layers=*/4), few) << keyed;
    EXPECT_EQ(waits_with(6, keyed, at::kBFloat16, /*layers=*/4), waits_with(2, keyed, at::kBFloat16)) << keyed;
  }
}

TEST(OtherDeviceDecoding, GivesTheCpusLogitsStepByStep) {
  for (const std::string name : {"llama_gqa_rope3", "gpt2", "t5_v1_0"}) {
    const auto run = [&](at::Device device) {
      const at::NoGradGuard no_grad;
      const auto folder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/" + name;
      ModelConfig config;
      const auto model = build_model(folder, &config);
      load_weights(*model, *io::open_weights(folder));
      model->eval();
      model->to(device);
      const bool causal = config.kind == ModelKind::kCausal;
      std::vector<at::Tensor> out;
      ModelInput in;
      in.cache = model->make_cache();
      const auto prompt = torch::tensor({5, 9, 3, 4, 8, 6}, at::kLong).view({2, 3}).to(device);
      in.input_ids = prompt;
      in.attention_mask = torch::tensor({0, 1, 1, 1, 1, 1}, at::kLong).view({2, 3}).to(device);
      for (int step = 0; step < 3; ++step) {
        const auto next = torch::tensor({4 + step, 9 - step}, at::kLong).view({2, 1}).to(device);
        if (!causal) {
          in.decoder_input_ids = next;
        } else if (step > 0) {
          in.input_ids = next;
          in.attention_mask = at::Tensor();
        }
        out.push_back((*model)(in).logits.cpu());
        in.cache->reorder(torch::tensor({0, 1}, at::kLong).to(device));
      }
      return out;
    };
    const auto here = run(at::kCPU), there = run(test::fake_device());
    for (std::size_t i = 0; i < here.size(); ++i)
      test::expect_close(there[i], here[i], 1e-5, name + ", step " + std::to_string(i));
  }
}

/// LLM.int8() in place of the layers' own weights.
void pack_layers_in_int8(Model& model) {
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto* linear = dynamic_cast<nn::Linear*>(item.value().get()); linear != nullptr && item.key() != "lm_head")
      linear->pack(quant::int8_codec(linear->weight.size(1), /*threshold=*/1.0));
}

TEST(OtherDeviceDecoding, GeneratesTheCpusTokens) {
  for (const std::string name : {"llama_gqa_rope3", "t5_v1_0"})
    for (const std::int64_t beams : {1, 3})
      for (const bool packed : {false, true}) {
        const auto run = [&](at::Device device) {
          const auto folder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/" + name;
          const auto model = build_model(folder, nullptr);
          load_weights(*model, *io::open_weights(folder));
          if (packed) pack_layers_in_int8(*model);
          model->to(device);
          GenerationConfig config;
          config.max_new_tokens = 6;
          config.num_beams = beams;
          const auto ids = torch::tensor({5, 9, 3, 4, 8, 6}, at::kLong).view({2, 3});
          const auto mask = torch::tensor({0, 1, 1, 1, 1, 1}, at::kLong).view({2, 3});
          return generate(*model, ids.to(device), mask.to(device), config).sequences;
        };
        EXPECT_TRUE(torch::equal(run(at::kCPU), run(test::fake_device()))) << name << ' ' << beams << ' ' << packed;
      }
}

}  // namespace
}  // namespace tessera::models
