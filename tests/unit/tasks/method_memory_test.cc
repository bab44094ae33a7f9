// What a step holds for an adapter, of every method of the registry: bytes of tensors that are counted one by one,
// beside the formulas (estimate/adapter_formulas.h).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/cpu_level.h"
#include "estimate/adapter_formulas.h"
#include "estimate/plan_request.h"
#include "nn/ops/onednn_matmul.h"
#include "peft/adapter_config.h"
#include "peft/apply.h"
#include "support/temp_folder.h"
#include "tasks/assemble.h"
#include "tasks/memory_plan.h"
#include "tessera/comm/communicator.h"
#include "unit/tasks/adapted_llama.h"
#include "unit/tasks/registry_settings.h"
#include "unit/tasks/tensor_bytes.h"

namespace tessera::tasks::method_memory {
namespace {

using nlohmann::json;

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& t : tensors)
    if (t.defined()) bytes += static_cast<std::int64_t>(t.nbytes());
  return bytes;
}

struct StepBytes {
  std::int64_t kept, working;
};

/// Of layers with the same input, [1, tokens, in]. The input, the outputs and their gradients are not counted, nor are
/// the gradients of parameters when all is done.
StepBytes measure(const std::vector<peft::Slot>& layers, std::int64_t tokens, at::ScalarType dtype) {
  const auto x = at::randn({1, tokens, layers.front().linear->in_features()}).to(dtype).requires_grad_(true);
  std::vector<at::Tensor> outputs, gradients, inputs = {x};
  for (const auto& layer : layers) {
    gradients.push_back(at::randn({1, tokens, layer.linear->out_features()}).to(dtype));
    if (layer.linear->adapter() == nullptr) continue;
    for (const auto& [name, p] : layer.parameters())
      if (p.requires_grad()) inputs.push_back(p);
  }
  TensorBytes counted;
  for (const auto& layer : layers) outputs.push_back((*layer.linear)(x));
  StepBytes out{};
  out.kept = counted.now() - bytes_of(outputs);
  counted.reset_peak();
  const auto begin = counted.now();
  auto found = torch::autograd::grad(outputs, inputs, gradients, false, false, true);
  out.working = counted.peak() - begin;
  found.erase(found.begin());  // x's
  out.working -= bytes_of(found);
  return out;
}

json llama(std::int64_t layers) {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 320},
          {"intermediate_size", 832},
          {"num_attention_heads", 5},
          {"num_key_value_heads", 1},
          {"num_hidden_layers", layers},
          {"vocab_size", 96},
          {"max_position_embeddings", 2048},
          {"torch_dtype", "float32"}};
}

/// Settings that fit the models; a method that is not listed has its own defaults, and takes part all the same.
const std::map<std::string, std::vector<json>> kSettings = {
    {"LORA",
     {{{"r", 24}},
      {{"r", 24}, {"lora_dropout", 0.1}},
      {{"r", 24}, {"use_dora", true}},
      {{"r", 24}, {"init_lora_weights", "pissa"}}}},
    {"LOHA", {{{"r", 5}}, {{"r", 14}}}},
    {"LOKR", {{{"r", 6}}, {{"r", 6}, {"decompose_factor", 4}}}},
    {"VERA", {{{"r", 48}}, {{"r", 48}, {"vera_dropout", 0.1}}}},
    {"VBLORA", {{{"r", 6}, {"num_vectors", 40}, {"vector_length", 32}}}},
    {"RANDLORA", {{{"r", 20}}}},
    {"FOURIERFT", {{{"n_frequency", 200}}}},
    {"MISS", {{{"r", 48}}, {{"r", 32}, {"init_weights", "bat"}}, {{"r", 32}, {"init_weights", "mini"}, {"mini_r", 8}}}},
    {"HRA", {{{"r", 6}}}},
    {"BOFT", {{{"boft_block_size", 8}}, {{"boft_block_size", 4}, {"boft_n_butterfly_factor", 2}}}},
    {"ROAD", {{{"variant", "road_1"}}, {{"variant", "road_2"}}, {{"variant", "road_4"}, {"group_size", 8}}}},
    {"SHIRA", {{{"r", 24}}}},
    {"WAVEFT", {{{"n_frequency", 200}}, {{"n_frequency", 200}, {"use_idwt", false}}}},
    {"ADALORA", {{{"init_r", 20}, {"target_r", 4}, {"total_step", 100}}}},
    {"DELORA", {{{"r", 24}}}},
    {"GRALORA", {{{"r", 16}, {"gralora_k", 2}}, {{"r", 16}, {"gralora_k", 4}, {"hybrid_r", 8}}}},
    {"C3A", {{{"block_size", 32}}}},
    {"UNILORA", {{{"r", 24}, {"theta_d_length", 1000}}}},
    {"PSOFT", {{{"r", 48}}}},
    {"PVERA", {{{"r", 48}}, {{"r", 48}, {"pvera_dropout", 0.1}}}},
    {"HIRA", {{{"r", 24}}, {{"r", 24}, {"hira_dropout", 0.1}}}},
    {"PROMPT_TUNING", {{{"num_virtual_tokens", 40}}}},
    {"P_TUNING", {{{"num_virtual_tokens", 40}, {"encoder_hidden_size", 32}}}},
    {"PREFIX_TUNING", {{{"num_virtual_tokens", 8}}}},
    {"TRAINABLE_TOKENS", {{{"token_indices", {5, 7, 20}}}}}};

/// Every method of the registry.
std::vector<json> cases() {
  std::vector<json> out;
  for (const auto& type : peft::method_types()) {
    const auto found = kSettings.find(type);
    for (auto keys : found == kSettings.end() ? std::vector<json>{json::object()} : found->second) {
      keys["peft_type"] = type;
      out.push_back(keys);
    }
  }
  return out;
}

std::string name_of(const testing::TestParamInfo<json>& info) {
  std::string out = info.param["peft_type"];
  for (const auto& [key, value] : info.param.items())
    if (value.is_string() && key != "peft_type") out += "_" + value.get<std::string>();
  for (const char* key : {"use_dora", "lora_dropout", "vera_dropout", "pvera_dropout", "hira_dropout",
                          "decompose_factor", "boft_n_butterfly_factor", "hybrid_r"})
    if (info.param.contains(key)) out += std::string("_") + key;
  return out + "_" + std::to_string(info.index);
}

class MethodMemory : public testing::TestWithParam<json> {
 protected:
  std::string folder_of(const std::string& name, const json& config) {
    const auto folder = temporary_.path() + "/" + name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/config.json") << config;
    return folder;
  }
  const test::TempFolder temporary_{"method_memory"};
};

struct Adapted {
  std::shared_ptr<models::Model> model;
  peft::AdapterReport report;
};

Adapted adapted(const std::string& folder, json keys, at::ScalarType dtype) {
  Adapted out;
  models::ModelConfig family;
  out.model = models::build_model(folder, &family);
  models::init_weights(*out.model, 5);
  out.report = peft::apply_adapter(*out.model, family, *peft::read_peft_keys(keys, "the test"));
  const auto init = peft::adapter_init(*out.model, *out.report.method, 7);
  for (const auto& item : out.model->named_parameters()) init(item.key(), item.value());
  peft::initialise_from_weights(*out.model, *out.report.method, 7);
  const at::NoGradGuard no_grad;
  for (const auto& item : out.model->named_parameters()) item.value().set_data(item.value().to(dtype));
  out.model->train();
  return out;
}

/// On all linear layers where the method sits in linear layers; IA3 also scales the inputs of some.
json on_all_layers(json keys) {
  const auto layers = estimate::layer_methods();
  if (std::find(layers.begin(), layers.end(), keys["peft_type"].get<std::string>()) == layers.end()) return keys;
  keys["target_modules"] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  if (keys["peft_type"] == "IA3") keys["feedforward_modules"] = {"down_proj"};
  return keys;
}

struct Formula {
  std::string type;
  std::map<std::string, std::string> settings;
  estimate::AdapterBytes of(const peft::Slot& slot, std::int64_t tokens, at::ScalarType dtype) const {
    return estimate::layer_adapter_bytes(
        type, settings,
        {slot.linear->in_features(), slot.linear->out_features(), type == "IA3" && slot.name.ends_with("down_proj")},
        {tokens, dtype == at::kFloat ? 4 : 2});
  }
};

TEST_P(MethodMemory, OfALayerIsTheFormulas) {
  const auto folder = folder_of("llama", llama(1));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto a = adapted(folder, on_all_layers(GetParam()), dtype);
    const Formula formula{a.report.method->type(), formula_settings(*a.report.method)};
    for (const auto& slot : peft::adapted_slots(*a.model)) {
      if (!slot.linear) continue;
      if (slot.name.ends_with("v_proj") || slot.name.ends_with("up_proj")) continue;  // as k_proj and gate_proj
      const bool wide = dtype == at::kFloat;
      for (const auto tokens : wide ? std::vector<std::int64_t>{500, 90} : std::vector<std::int64_t>{500}) {
        measure({slot}, tokens, dtype);  // what is drawn once and shared
        auto measured = measure({slot}, tokens, dtype);
        {
          const nn::AdaptersOff off;
          measured.working -= measure({slot}, tokens, dtype).working;
        }
        const auto expected = formula.of(slot, tokens, dtype);
        const auto kept = static_cast<double>(expected.kept + expected.kept_by_input);
        const auto text = fmt::format("{} of {} tokens, {}", slot.name, tokens, c10::toString(dtype));
        EXPECT_NEAR(static_cast<double>(measured.kept), kept, 0.02 * kept + 64) << text;
        // What 16 bits work with depends on the processor's instructions, float32 too where its products are in tiles
        // or oneDNN's, which allocates memory for the parts that it packs.
        if (!wide || !multiplies_float32() || nn::onednn_matmul_for(slot.linear->weight, slot.linear->weight)) continue;
        const auto working = static_cast<double>(expected.working);
        constexpr double kLeftToMalloc = 16 << 10;  // smaller blocks are not in the plan of any part
        EXPECT_NEAR(static_cast<double>(measured.working), working, 0.03 * working + kLeftToMalloc) << text;
      }
    }
  }
}

TEST(MethodMemoryOfModels, LayersWithTheSameInputKeepVeRAsProductOnce) {
  const test::TempFolder temporary("vera_memory");
  std::ofstream(temporary.path() + "/config.json") << llama(1);
  const auto a = adapted(temporary.path(), on_all_layers({{"peft_type", "VERA"}, {"r", 48}}), at::kFloat);
  constexpr std::int64_t kTokens = 500;
  std::vector<peft::Slot> layers;
  for (const auto& slot : peft::adapted_slots(*a.model))
    if (slot.name.ends_with("gate_proj") || slot.name.ends_with("up_proj")) layers.push_back(slot);
  ASSERT_EQ(layers.size(), 2U);
  const Formula formula{"VERA", formula_settings(*a.report.method)};
  const auto planned = estimate::adapter_activations(estimate::read_model_tensors(temporary.path()),
                                                     [&](const estimate::ModelTensor& t) {
                                                       const auto module = estimate::module_of(t.name);
                                                       for (const auto& layer : layers)
                                                         if (layer.name == module)
                                                           return formula.of(layer, kTokens, at::kFloat);
                                                       return estimate::AdapterBytes{};
                                                     });
  EXPECT_EQ(planned.kept, 4 * kTokens * 48);
  EXPECT_EQ(measure(layers, kTokens, at::kFloat).kept, planned.kept);
}

/// Activations and gradients in backward.
std::int64_t in_backward(const estimate::RankPlan& plan) {
  std::int64_t bytes = 0;
  for (const auto& part : plan.parts)
    for (const std::string name : {"gradients", "activations kept for backward", "a block's backward"})
      if (part.what == name) bytes += part.bytes;
  return bytes;
}

TEST_P(MethodMemory, ARunPlansWhatEstimateSays) {
  const std::string type = GetParam()["peft_type"];
  const auto counted = estimate::counted_methods();
  if (std::find(counted.begin(), counted.end(), type) == counted.end()) GTEST_SKIP() << "runs count it";
  auto keys = settings_of(type);
  keys["peft_type"] = type;
  estimate::PlanRequest request{.adapter = estimate::AdapterRequest{.peft_type = type}, .ranks = 1};
  for (const auto& [key, value] : keys.items())
    if (value.is_number() || value.is_array()) request.adapter->peft_args += key + "=" + value.dump() + ",";
  request.adapter->lora_r = keys.value("r", 8);
  request.adapter->num_virtual_tokens = keys.value("num_virtual_tokens", 0);
  keys = on_all_layers(keys);
  if (type == "IA3") request.adapter->feedforward_modules = {"down_proj"};
  for (const bool checkpointing : {false, true}) {
    request.batch = {.rows = 3, .length = 200, .checkpointing = checkpointing};
    auto options = adapted_llama(keys);
    options.fsdp.wrap = nullptr;
    if (checkpointing) options.fsdp.activation_checkpointing = fsdp::same_as_wrap();
    const auto group = comm::make_solo();
    std::int64_t planned = 0, on_device = 0;
    options.before_sharding = [&](const Assembled& model, const fsdp::FsdpOptions& fsdp) {
      const PlanSettings settings{.model_folder = kLlama, .optim = "adamw_torch", .batch = {.rows = 3, .length = 200}};
      planned = in_backward(plan_rank(model, fsdp, settings, *group));
      EXPECT_EQ(plan_device(model, fsdp, settings, *group).total(), 0) << "the CPU computes";
      auto there = fsdp;
      there.device = at::kCUDA;
      there.state_on = fsdp::StateOn::kDevice;
      on_device = in_backward(plan_device(model, there, settings, *group));
    };
    assemble(options, group);
    const auto tensors = estimate::read_model_tensors(kLlama);
    EXPECT_EQ(planned, in_backward(estimate::plan_for(request, tensors))) << checkpointing;
    // A prompt encoder's layers have numbers, as blocks have: a run counts gradients of one of them.
    const auto there = static_cast<double>(in_backward(estimate::device_plan_for(request, tensors)));
    EXPECT_NEAR(static_cast<double>(on_device), there, 0.002 * there) << checkpointing;
  }
}

// Its weight is read by its own call, so the loss does not make the logits in parts (models/causal_lm_head.cc).
TEST(MethodMemoryOfModels, OfAHeadWithAnAdapterAllLogitsAreCounted) {
  constexpr std::int64_t kRows = 64, kLength = 1024, kClasses = 96;
  const auto loss_with = [&](const std::string& target) {
    auto options = adapted_llama({{"peft_type", "LORA"}, {"r", 2}, {"target_modules", {target}}});
    options.fsdp.wrap = nullptr;
    const auto group = comm::make_solo();
    std::vector<double> bytes;
    options.before_sharding = [&](const Assembled& model, const fsdp::FsdpOptions& fsdp) {
      const PlanSettings settings{
          .model_folder = kLlama, .optim = "adamw_torch", .batch = {.rows = kRows, .length = kLength}};
      auto there = fsdp;
      there.device = at::kCUDA;
      there.state_on = fsdp::StateOn::kDevice;
      for (const auto& plan : {plan_rank(model, fsdp, settings, *group), plan_device(model, there, settings, *group)}) {
        auto& found = bytes.emplace_back(0);
        for (const auto& part : plan.parts)
          if (part.what == std::string("logits and their gradient")) found = static_cast<double>(part.bytes);
      }
    };
    assemble(options, group);
    return bytes;
  };
  const auto adapted = loss_with("lm_head"), plain = loss_with("q_proj");
  ASSERT_EQ(adapted.size(), 2U);
  constexpr double kLogits = kRows * kLength * kClasses;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GE(adapted[i], 12 * kLogits) << i;
    EXPECT_LT(plain[i], adapted[i] - 4 * kLogits) << i;
  }
}

// LLM.int8() has as many codes as there are weights, NF4 half as many: each is told by what it is.
TEST(MethodMemoryOfModels, PackedWeightsAreCountedAsTheyLie) {
  using Packed = std::optional<families::Quantization>;
  const auto planned = [&](const Packed& packed) {
    auto options = adapted_llama({{"peft_type", "LORA"}, {"r", 2}, {"target_modules", {"q_proj"}}});
    options.fsdp.wrap = nullptr;
    options.quantization = packed;
    const auto group = comm::make_solo();
    std::map<std::string, std::int64_t> bytes;
    options.before_sharding = [&](const Assembled& model, const fsdp::FsdpOptions& fsdp) {
      for (const auto& part : plan_rank(model, fsdp, {.model_folder = kLlama, .optim = "sgd"}, *group).parts)
        bytes[part.what] += part.bytes;
    };
    assemble(options, group);
    return bytes;
  };
  std::int64_t matrices = 0, rows = 0;
  for (const auto& t : estimate::read_model_tensors(kLlama))
    if (estimate::is_linear(t)) matrices += t.numel(), rows += t.shape[0];
  auto dense = planned({}), nibbles = planned(families::Quantization{});
  auto codes = planned(families::Quantization{.form = families::PackedForm::kInt8});
  EXPECT_EQ(dense["packed weights"], 0);
  EXPECT_EQ(codes["packed weights"], matrices + 4 * rows) << "a byte each, and a number a row";
  EXPECT_EQ(codes["frozen weights"], dense["frozen weights"] - 4 * matrices);
  EXPECT_LT(nibbles["packed weights"], matrices);
  EXPECT_EQ(nibbles["frozen weights"], codes["frozen weights"]);
}

INSTANTIATE_TEST_SUITE_P(Registry, MethodMemory, testing::ValuesIn(cases()), name_of);

TEST(MemoryBudget, LeavesCopiesForSavesWhatThePlanDoesNotNeed) {
  const estimate::RankPlan plan{.parts = {{"weights", 100 << 20}}, .program = 90 << 20};
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    const std::int64_t program = plan.program >> 20;
    const auto room = [&](std::int64_t mib) {
      return room_for_copies(plan, std::to_string(mib) + "MiB", *group) >> 20;
    };
    EXPECT_EQ(room(program + 130), 30);
    EXPECT_EQ(room(program + 100), 0);
    EXPECT_EQ(room(program), 0);
    const auto free = room_for_copies(plan, "", *group);  // of two ranks
    EXPECT_GT(free, 0);
    EXPECT_LT(free, report::available_memory_bytes() / 3);
  });
}

TEST(MemoryBudget, RanksOfAHostTellEachOtherWhatTheyHaveOfFiles) {
  comm::run_threads(3, [&](std::shared_ptr<comm::Communicator> group) {
    const auto mean = mean_of_files(*group);
    ASSERT_TRUE(mean);
    const std::int64_t mine = 300 * (group->rank() + 1);
    mean(mine);
    group->barrier();
    EXPECT_EQ(mean(mine), 600);
  });
  EXPECT_FALSE(mean_of_files(*comm::make_solo())) << "one rank has all";
}

}  // namespace
}  // namespace tessera::tasks::method_memory
