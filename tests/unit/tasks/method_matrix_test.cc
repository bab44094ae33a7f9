// Every method of the registry, over decoders, encoder-decoders and encoders: sharded training is unsharded training,
// a run goes on bit for bit, and what is saved and merged computes what was trained.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "checkpoint/pretrained.h"
#include "checkpoint/save_packed.h"
#include "checkpoint/training_state.h"
#include "checkpoint/visit_dense.h"
#include "peft/adapter_config.h"
#include "peft/methods/adalora.h"
#include "support/compare.h"
#include "support/temp_folder.h"
#include "tasks/assemble.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/optim/factory.h"
#include "train/rank_allocation.h"
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
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.keys.dump() << " on " << c.base;
}

const std::vector<std::string> kBases = {"base_llama", "base_t5", "base_bert"};

/// What PEFT has no form of, either, or only with another model.
bool is_refused(const Case& c) {
  const bool decoder = c.base == "base_llama";
  if (c.keys["peft_type"] == "PREFIX_TUNING") return c.base == "base_bert";
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
      out.push_back({base, keys, name});
    }
  }
  return out;
}

/// How the ranks hold the model.
struct Layout {
  int world = 1;
  fsdp::ShardingStrategy strategy = fsdp::ShardingStrategy::kNoShard;
  int shard_group_size = 0;
};

using enum fsdp::ShardingStrategy;
const std::vector<Layout> kLayouts = {{2, kFullShard}, {3, kShardGradOp}, {2, kNoShard}, {4, kHybridShard, 2}};

struct Form {
  bool packed = false, recompute = false;
};

std::string text_of(const Layout& layout, const Form& form) {
  return fmt::format("{} ranks, strategy {}, {}{}", layout.world, static_cast<int>(layout.strategy),
                     form.packed ? "packed" : "dense", form.recompute ? ", again" : "");
}

AssembleOptions options_of(const Case& c, const Layout& layout, const Form& form) {
  AssembleOptions o{.model_folder = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/" + c.base,
                    .method = peft::read_peft_keys(c.keys, "the test")};
  o.fsdp.strategy = layout.strategy;
  o.fsdp.wrap = nullptr;  // the model's blocks
  o.fsdp.shard_group_size = layout.shard_group_size;
  if (form.packed) o.quantization = families::Quantization{.quant_type = "nf4"};
  if (form.recompute) o.fsdp.activation_checkpointing = fsdp::same_as_wrap();
  return o;
}

constexpr std::int64_t kRows = 12, kLength = 8;

/// This rank's rows of a step, with padding and, for aLoRA, its invocation.
models::ModelInput rows(const Assembled& a, int step, int rank, int world) {
  models::ModelInput in;
  auto ids = (at::arange(kRows * kLength) * (7 + 2 * step) % 43 + 5).view({kRows, kLength});
  ids.select(1, 2).fill_(9);
  const auto lengths = (kLength - at::arange(kRows).remainder(4)).unsqueeze(1);
  const auto mask = at::arange(kLength).unsqueeze(0).lt(lengths);
  const auto labels = ids.masked_fill(mask.logical_not(), -100);
  const auto mine = [&](const at::Tensor& t) { return t.slice(0, rank, std::nullopt, world).contiguous(); };
  in.input_ids = mine(ids.masked_fill(mask.logical_not(), 0));
  in.attention_mask = mine(mask.to(at::kLong));
  const bool classifies = a.config.kind == models::ModelKind::kSequenceClassification;
  in.labels = mine(classifies ? at::arange(kRows).remainder(3) : labels);
  in.loss_normalizer = 60;
  return in;
}

at::Tensor outputs_of(const Assembled& a) {
  a.model->eval();
  const at::NoGradGuard no_grad;
  return (*a.model)(rows(a, 9, 0, 4)).logits.to(at::kFloat);
}

/// A rank of a run. Adapters begin away from where they have no effect.
struct Rank {
  Rank(const AssembleOptions& options, const std::shared_ptr<comm::Communicator>& group)
      : a(assemble(options, group)), group(group) {
    a.sharded->set_gradient_divisor(1.0);
    if (options.adapter_folder.empty()) move();
    optimizer = optim::make_optimizer("adamw_torch", {.lr = 5e-3}, a.sharded->parameters(),
                                      fsdp::parameter_slices(*a.sharded), a.sharded->shard_group());
    optimizer->keep_state_in(a.sharded->offload_store());
    optimizer = train::allocating_ranks(std::move(optimizer), *a.sharded, a.adapters->method.get());
    a.model->train();
  }
  void move() {
    std::set<std::string> names;
    for (const auto& item : a.model->named_parameters())
      if (item.value().requires_grad()) names.insert(item.key());
    auto values = checkpoint::gather_values(*a.sharded, names);
    for (auto& [name, value] : values) {
      const auto noise = at::empty_like(value, at::kFloat);
      tensor::fill_normal(noise, tensor::named_key(5, name), 0.0, 0.05);
      value = value + noise;
    }
    checkpoint::write_values(*a.sharded, values);
  }
  double step(int number) {
    const auto loss = (*a.model)(rows(a, number, group->rank(), group->size())).loss;
    loss.backward();
    norm = a.sharded->clip_grad_norm(1e9, *optimizer);
    optimizer->step();
    optimizer->zero_grad();
    return loss.item<double>();
  }
  at::Tensor outputs() const { return outputs_of(a); }
  Assembled a;
  std::shared_ptr<comm::Communicator> group;
  std::unique_ptr<optim::Optimizer> optimizer;
  double norm = 0;
};

constexpr int kSteps = 4;

struct Run {
  std::vector<double> losses, norms;
  at::Tensor outputs;
};

struct RunFolders {
  std::string adapter = {};     // is saved here at the end
  std::string checkpoint = {};  // the run stops after half of its steps, and another goes on from here
};

Run train(const Case& c, const Layout& layout, const Form& form, const RunFolders& folders = {}) {
  Run run{std::vector<double>(kSteps), std::vector<double>(kSteps), {}};
  std::mutex mutex;
  const auto options = options_of(c, layout, form);
  comm::run_threads(layout.world, [&](const std::shared_ptr<comm::Communicator>& group) {
    auto rank = std::make_unique<Rank>(options, group);
    for (int i = 0; i < kSteps; ++i) {
      if (i == kSteps / 2 && !folders.checkpoint.empty()) {
        checkpoint::save_training_state(*rank->a.sharded, *rank->optimizer, folders.checkpoint);
        rank.reset();
        rank = std::make_unique<Rank>(options, group);
        checkpoint::load_training_state(*rank->a.sharded, rank->optimizer.get(), folders.checkpoint);
      }
      const double loss = rank->step(i);
      const std::lock_guard<std::mutex> lock(mutex);
      run.losses[static_cast<std::size_t>(i)] += loss;
      run.norms[static_cast<std::size_t>(i)] = rank->norm;
    }
    const auto out = rank->outputs();
    if (!folders.adapter.empty())
      checkpoint::save_adapter(*rank->a.sharded, rank->a.adapted(), {.dtype = at::kFloat}, folders.adapter);
    if (group->rank() == 0) run.outputs = out;
  });
  return run;
}

/// Losses within 1e-5, gradients and the trained model's outputs within 1e-3 of their size.
void expect_same_run(const Run& got, const Run& want, const std::string& what) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i]) << what << ", loss of step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-3 * want.norms[i]) << what << ", step " << i;
  }
  test::expect_close(got.outputs, want.outputs, 1e-3, what + ", outputs");
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
    EXPECT_THROW(train(c, {}, {}), ConfigError);
    return;
  }
  for (const bool packed : {false, true}) {
    const auto alone = train(c, {}, {.packed = packed});
    EXPECT_GT(alone.norms[0], 0);
    for (std::size_t i = packed ? 1 : 0; i < kLayouts.size(); i += packed ? 2 : 1) {
      const Form form{.packed = packed, .recompute = i % 2 == 1};
      expect_same_run(train(c, kLayouts[i], form), alone, text_of(kLayouts[i], form));
    }
  }
}

TEST_P(MethodMatrix, GoesOnBitForBitAndLoadsWhatItSaved) {
  const auto& c = GetParam();
  if (is_refused(c)) return;
  const test::TempFolder folder("matrix");
  const std::vector<std::pair<Layout, Form>> runs = {{{2, kFullShard}, {}},
                                                     {{3, kShardGradOp}, {.packed = true, .recompute = true}}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& [layout, form] = runs[i];
    const auto what = text_of(layout, form);
    const auto place = folder.path() + "/" + std::to_string(i);
    const auto straight = train(c, layout, form, {.adapter = place + "_adapter"});
    const auto resumed = train(c, layout, form, {.checkpoint = place + "_checkpoint"});
    for (std::size_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(resumed.losses[step], straight.losses[step]) << what << ", loss of step " << step;
      EXPECT_EQ(resumed.norms[step], straight.norms[step]) << what << ", gradient of step " << step;
    }
    EXPECT_TRUE(at::equal(resumed.outputs, straight.outputs)) << what;
    auto options = options_of(c, {}, form);
    options.method = nullptr;
    options.adapter_folder = place + "_adapter";
    const auto alone = comm::make_solo();
    Rank loaded(options, alone);
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
