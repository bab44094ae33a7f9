// Every method of the registry, over decoders, encoder-decoders and encoders: sharded training is unsharded training,
// a run goes on bit for bit, and what is saved and merged computes what was trained.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/save_packed.h"
#include "peft/adapter_config.h"
#include "peft/methods/adalora.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "unit/tasks/adapter_runs.h"
#include "unit/tasks/registry_settings.h"

namespace tessera::tasks::method_matrix {
namespace {

using nlohmann::json;

/// Further forms of methods, as peft_type, keys.
const std::vector<std::pair<std::string, json>> kForms = {
    {"LORA", {{"r", 4}, {"use_dora", true}}},
    {"LORA", {{"r", 4}, {"init_lora_weights", "pissa"}}},
    {"LORA", {{"r", 4}, {"bias", "all"}, {"lora_bias", true}}},
    {"LORA", {{"r", 4}, {"trainable_token_indices", {5, 7, 20}}}},
    {"LORA", {{"r", 4}, {"alora_invocation_tokens", {9}}}},
    {"LOKR", {{"r", 2}, {"decompose_both", true}, {"decompose_factor", 4}}},
    {"MISS", {{"r", 4}, {"init_weights", "bat"}}},
    {"MISS", {{"r", 4}, {"init_weights", "mini"}, {"mini_r", 2}}},
    {"OFT", {{"oft_block_size", 4}, {"coft", true}, {"block_share", true}}},
    {"P_TUNING", {{"num_virtual_tokens", 3}, {"encoder_hidden_size", 8}, {"encoder_reparameterization_type", "LSTM"}}},
    {"PREFIX_TUNING", {{"num_virtual_tokens", 3}, {"prefix_projection", true}, {"encoder_hidden_size", 8}}}};

struct Case {
  std::string base;  // folder below B_train
  json keys;         // with peft_type
  std::string name;
  std::size_t turn;  // which of the further layouts
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.keys.dump() << " on " << c.base;
}

const std::vector<std::string> kBases = {"base_llama", "base_t5", "base_bert"};

/// What PEFT has no form of, either, or only with another model.
bool is_refused(const Case& c) {
  const bool decoder = c.base == "base_llama";
  return c.keys.contains("alora_invocation_tokens") && !decoder;
}

std::vector<Case> cases() {
  std::vector<std::pair<std::string, json>> methods;
  for (const auto& type : peft::method_types()) methods.emplace_back(type, settings_of(type));
  methods.insert(methods.end(), kForms.begin(), kForms.end());
  std::vector<Case> out;
  for (const auto& [type, settings] : methods) {
    for (const auto& base : kBases) {
      auto keys = settings;
      keys["peft_type"] = type;
      if (type == "LN_TUNING" && base == "base_bert") keys["target_modules"] = {"LayerNorm"};
      if (type == "PREFIX_TUNING" && base == "base_t5") keys["token_dim"] = 32;  // its heads are wider than the model
      const auto name = fmt::format("{}_{}_{}", out.size() / kBases.size(), type, base.substr(5));
      out.push_back({base, keys, name, out.size() / kBases.size() + out.size() % kBases.size()});
    }
  }
  return out;
}

using namespace adapter_runs;
const Layout kTwoRanks = {2, kFullShard}, kThreeRanks = {3, kShardGradOp}, kFourRanks = {4, kHybridShard, 2};

struct Form {
  bool packed = false, recompute = false, bf16 = false;
};

std::string text_of(const Layout& layout, const Form& form) {
  return fmt::format("{}, {}{}{}", adapter_runs::text_of(layout), form.packed ? "packed" : "dense",
                     form.recompute ? ", again" : "", form.bf16 ? ", bf16" : "");
}

AssembleOptions options_of(const Case& c, const Layout& layout, const Form& form) {
  auto o = laid_out({.model_folder = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/" + c.base,
                     .method = peft::read_peft_keys(c.keys, "the test")},
                    layout);
  if (form.packed) o.quantization = families::Quantization{.quant_type = "nf4"};
  if (form.recompute) o.fsdp.activation_checkpointing = fsdp::same_as_wrap();
  if (form.bf16) o.fsdp.precision.param_dtype = at::kBFloat16;
  return o;
}

/// Kept: one test compares it with a run on one rank, another with one in two halves.
const Run& train_case(const Case& c, const Layout& layout, const Form& form) {
  static std::map<std::string, Run> kept;
  const auto name = c.name + ", " + text_of(layout, form);
  const auto it = kept.find(name);
  return it != kept.end() ? it->second : kept[name] = train(options_of(c, layout, form), layout.world);
}

bool merges(const Assembled& a) {
  try {
    a.adapters->method->check_can_merge(*a.model);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// Of the dense model that two ranks write with the adapter in its weights.
at::Tensor merged_outputs(const Case& c, const std::string& adapter, const Form& form) {
  auto options = options_of(c, {2, kFullShard}, form);
  options.method = nullptr;
  options.adapter_folder = adapter;
  const auto folder = adapter + "_merged";
  comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(options, group);
    const auto head = a.adapters->untied ? checkpoint::Head::kUntied : checkpoint::Head::kAsInBase;
    const checkpoint::SaveOptions save{.files = {.model = options.model_folder, .tokenizer = {}},
                                       .vocab_size = a.config.vocab_size,
                                       .dtype = at::kFloat};
    if (form.packed) {
      checkpoint::save_packed(*a.sharded, *a.model, {.save = save, .adapted = a.adapted(), .head = head}, folder);
    } else {
      checkpoint::save_merged(*a.sharded, a.adapted(), save, folder, head);
    }
  });
  const auto a = assemble({.model_folder = folder}, comm::make_solo());
  return outputs_of(a);
}

class MethodMatrix : public testing::TestWithParam<Case> {};

TEST_P(MethodMatrix, ShardedIsUnsharded) {
  const auto& c = GetParam();
  if (is_refused(c)) {
    EXPECT_THROW(train_case(c, {}, {}), ConfigError);
    return;
  }
  const auto expect_alike = [&](bool packed, const std::vector<std::pair<Layout, bool>>& layouts) {
    const auto alone = train_case(c, {}, {.packed = packed});
    EXPECT_GT(alone.norms[0], 0);
    for (const auto& [layout, recompute] : layouts) {
      const Form form{.packed = packed, .recompute = recompute};
      expect_same_run(train_case(c, layout, form), alone, text_of(layout, form));
    }
  };
  // Each method has all layouts, but the further ones each over another base; and so has each base.
  const std::pair<Layout, bool> further[] = {{kThreeRanks, true}, {{2, kNoShard}, false}, {kFourRanks, true}};
  expect_alike(false, {{kTwoRanks, false}, further[c.turn % 3]});
  expect_alike(true, {{kThreeRanks, true}});
  if (c.turn % 3 == 0) expect_alike(true, {{kFourRanks, true}});
}

// To within what bfloat16 rounds: T5's and BERT's losses are numbers of its 8 bits, one of each rank, and Adam's steps
// do not depend on how small a gradient is, so gradients are compared before the first of them.
TEST_P(MethodMatrix, ShardedIsUnshardedInBfloat16) {
  const auto& c = GetParam();
  if (is_refused(c)) return;
  const auto alone = train_case(c, {}, {.bf16 = true});
  const Form form{.bf16 = true};
  const auto sharded = train_case(c, kTwoRanks, form);
  const auto what = text_of(kTwoRanks, form);
  for (std::size_t i = 0; i < kSteps; ++i)
    EXPECT_NEAR(sharded.losses[i], alone.losses[i], 2e-2 * alone.losses[i]) << what << ", loss of step " << i;
  EXPECT_GT(alone.norms[0], 0);
  EXPECT_NEAR(sharded.norms[0], alone.norms[0], 2e-2 * alone.norms[0]) << what;
}

TEST_P(MethodMatrix, GoesOnBitForBitAndLoadsWhatItSaved) {
  const auto& c = GetParam();
  if (is_refused(c)) return;
  const test::TempFolder folder("matrix");
  const std::vector<std::pair<Layout, Form>> runs = {{kTwoRanks, {}},
                                                     {kThreeRanks, {.packed = true, .recompute = true}}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& [layout, form] = runs[i];
    const auto what = text_of(layout, form);
    const auto place = folder.path() + "/" + std::to_string(i);
    const auto straight = train_case(c, layout, form);
    auto options = options_of(c, layout, form);
    const auto resumed =
        train_in_halves(options, layout.world, options, layout.world, place + "_checkpoint", place + "_adapter");
    expect_equal_run(resumed, straight, what);
    options = options_of(c, {}, form);
    options.method = nullptr;
    options.adapter_folder = place + "_adapter";
    const auto alone = comm::make_solo();
    RankRun loaded(options, alone);
    test::expect_close(loaded.outputs(), straight.outputs, 1e-5, what + ", loaded");
    if (!merges(loaded.a)) {
      EXPECT_THROW(merged_outputs(c, place + "_adapter", form), Error);
      continue;
    }
    EXPECT_FALSE(c.keys.contains("lora_bias") && c.base != "base_bert") << "only its layers have biases";
    const auto dense = merged_outputs(c, place + "_adapter", form);
    test::expect_close(dense, straight.outputs, 1e-4, what + ", merged");
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, MethodMatrix, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::tasks::method_matrix
