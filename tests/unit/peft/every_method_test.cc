// What holds for every method: it begins without effect, merges into what it computes, and refuses what it cannot take.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "peft/adapter_files.h"
#include "peft/merge.h"
#include "support/compare.h"
#include "tessera/base/error.h"
#include "unit/peft/with_adapter.h"

namespace tessera::peft {
namespace {

using nlohmann::json;

std::unique_ptr<PeftMethod> method_of(json keys, const std::string& type) {
  keys["peft_type"] = type;
  return read_peft_keys(keys, "the test");
}

at::Tensor outputs(models::Model& model) {
  models::ModelInput in;
  in.input_ids = (at::arange(14) * 5 % 29 + 3).view({2, 7});
  const torch::NoGradGuard no_grad;
  return model(in).logits;
}

at::Tensor base_outputs(const std::string& base) {
  models::ModelConfig family;
  const auto model = models::build_model(kFolder + base, &family);
  models::load_weights(*model, *io::open_weights(kFolder + base));
  model->eval();
  return outputs(*model);
}

struct Case {
  const char* type;
  json keys;
  const char* base = "base_llama";
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.type << " " << c.keys.dump() << " " << c.base;
}

class EveryMethod : public testing::TestWithParam<Case> {};

TEST_P(EveryMethod, BeginsWithoutEffectAndMergesIntoWhatItComputes) {
  const auto& [type, keys, base] = GetParam();
  auto adapted = load(*method_of(keys, type), base);
  initialise_from_weights(*adapted.model, *adapted.report.method, 7);
  adapted.model->eval();
  test::expect_close(outputs(*adapted.model), base_outputs(base), 1e-4, "at the start");
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  for (const auto& item : adapted.model->named_parameters())
    if (item.value().requires_grad()) item.value().add_(torch::randn_like(item.value()) * 0.1);
  const auto moved = outputs(*adapted.model);
  EXPECT_GT((moved - base_outputs(base)).abs().max().item<double>(), 1e-4);
  merge_adapters(*adapted.model, *adapted.report.method);
  EXPECT_TRUE(nn::adapter_parameters(*adapted.model).empty());
  test::expect_close(outputs(*adapted.model), moved, 1e-4, "merged");
}

const json kLayers = {{"target_modules", {"q_proj", "down_proj"}}};

json with(json keys, const json& more = kLayers) {
  keys.update(more);
  return keys;
}

INSTANTIATE_TEST_SUITE_P(
    Settings, EveryMethod,
    testing::Values(
        Case{"LOHA", with({{"r", 3}})}, Case{"LOKR", with({{"r", 2}})},
        Case{"LOKR", with({{"r", 1}, {"decompose_both", true}, {"decompose_factor", 4}})},
        Case{"LOKR", with({{"r", 64}, {"init_weights", "lycoris"}})}, Case{"VERA", with({{"r", 7}})},
        Case{"VERA", {{"r", 7}}, "base_gpt2"}, Case{"RANDLORA", with({{"r", 7}})},
        Case{"RANDLORA", {{"r", 5}, {"sparse", true}}, "base_gpt2"},
        Case{"FOURIERFT", with({{"n_frequency", 30}, {"init_weights", true}})}, Case{"MISS", with({{"r", 5}})},
        Case{"MISS", with({{"r", 4}, {"init_weights", "bat"}})},
        Case{"MISS", with({{"r", 5}, {"init_weights", "mini"}, {"mini_r", 8}})}, Case{"HRA", with({{"r", 4}})},
        Case{"HRA", with({{"r", 6}})}, Case{"OFT", with({{"oft_block_size", 5}})},
        Case{"OFT", with({{"oft_block_size", 4}, {"block_share", true}})},
        Case{"OFT", with({{"oft_block_size", 8}, {"num_cayley_neumann_terms", 3}})},
        Case{"BOFT", with({{"boft_block_num", 6}, {"boft_block_size", 0}})},
        Case{"BOFT", with({{"boft_block_size", 2}, {"boft_n_butterfly_factor", 2}})},
        Case{"ROAD", with({{"group_size", 4}})}, Case{"ROAD", with({{"variant", "road_2"}, {"group_size", 24}})},
        Case{"ROAD", {{"variant", "road_4"}, {"group_size", 16}, {"target_modules", {"query"}}}, "base_bert"},
        Case{"SHIRA", with({{"r", 3}})},
        Case{"SHIRA", {{"r", 2}, {"random_seed", 0}, {"target_modules", {"query"}}}, "base_bert"},
        Case{"WAVEFT", with({{"n_frequency", 30}, {"scaling", 5}})},
        Case{"WAVEFT",
             {{"n_frequency", 9}, {"wavelet_family", "coif2"}, {"n_frequency_pattern", {{"c_proj", 40}}}},
             "base_gpt2"},
        Case{"WAVEFT", with({{"n_frequency", 30}, {"proportional_parameters", true}, {"use_idwt", false}})},
        Case{"LORA", with({{"init_lora_weights", "pissa"}, {"r", 3}})},
        Case{"LORA", {{"init_lora_weights", "olora"}, {"r", 4}}, "base_gpt2"},
        Case{"LORA", with({{"init_lora_weights", "orthogonal"}, {"r", 4}})},
        Case{"LORA", {{"init_lora_weights", "mica"}, {"r", 4}}, "base_gpt2"},
        Case{"LORA", with({{"init_lora_weights", "pissa_niter_4"}, {"r", 3}})},
        Case{"LORA", {{"lora_bias", true}}, "base_gpt2"}, Case{"LORA", {{"target_parameters", {"mlp.up_proj.weight"}}}},
        Case{"LORA", with({{"trainable_token_indices", {3, 8}}})},
        Case{"LORA", {{"ensure_weight_tying", true}, {"modules_to_save", {"lm_head"}}}, "base_gpt2"},
        Case{"TRAINABLE_TOKENS", {{"token_indices", {3, 8}}}},
        Case{"TRAINABLE_TOKENS", {{"token_indices", {3, 8, 28}}}, "base_gpt2"}, Case{"ADALORA", with({{"init_r", 5}})},
        Case{"ADALORA", {{"init_r", 5}}, "base_gpt2"}, Case{"DELORA", with({{"r", 3}})},
        Case{"GRALORA", with({{"r", 4}})}, Case{"GRALORA", {{"r", 4}, {"gralora_k", 4}, {"hybrid_r", 3}}, "base_gpt2"},
        Case{"C3A", with({{"block_size", 4}, {"init_weights", true}})}, Case{"HIRA", with({{"r", 5}})},
        Case{"HIRA", {{"r", 3}, {"init_weights", "gaussian"}}, "base_gpt2"}, Case{"BEFT", json::object(), "base_bert"},
        Case{"PVERA", with({{"r", 7}})}, Case{"PSOFT", with({{"r", 5}})},
        Case{"PSOFT",
             {{"r", 4},
              {"psoft_orth", false},
              {"psoft_mag_a", false},
              {"ab_svd_init", "pissa_init"},
              {"target_modules", {"query"}}},
             "base_bert"},
        Case{"PSOFT",
             with({{"r", 4}, {"psoft_svd", "lowrank"}, {"use_cayley_neumann", true}, {"cayley_neumann_eps", 0.2}})},
        Case{"UNILORA", with({{"r", 3}, {"init_theta_d_bound", 1e-6}})},
        Case{"UNILORA", {{"theta_d_length", 10000}, {"init_theta_d_bound", 1e-6}}, "base_gpt2"},
        Case{"PVERA", {{"r", 5}, {"generator_seed", 3}}, "base_gpt2"}, Case{"LN_TUNING", json::object()},
        Case{"LN_TUNING", json::object(), "base_gpt2"}));

class Refused : public testing::TestWithParam<Case> {};

TEST_P(Refused, ByName) {
  const auto& [type, keys, named] = GetParam();
  try {
    load(*method_of(keys, type), "base_gpt2");
    FAIL() << "expected ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Refused,
    testing::Values(
        Case{"LOHA", json::object(), "Conv1D"}, Case{"OFT", json::object(), "Conv1D"},
        Case{"BOFT", json::object(), "Conv1D"},
        Case{"BOFT", {{"boft_block_size", 5}, {"target_modules", {"lm_head"}}}, "boft_block_size"},
        Case{"LORA",
             {{"target_modules", {"c_attn"}}, {"target_parameters", {"attn.c_attn.weight"}}},
             "target_parameters"},
        Case{"VERA", {{"target_modules", {"wte"}}}, "embedding"},
        Case{"VBLORA", {{"vector_length", 7}}, "vector_length"},
        Case{"FOURIERFT", {{"n_frequency", 1000000}}, "n_frequency"},
        Case{"GRALORA", {{"r", 4}, {"gralora_k", 3}}, "gralora_k"},
        Case{"GRALORA", {{"r", 10}, {"gralora_k", 5}}, "gralora_k"}, Case{"GRALORA", {{"hybrid_r", -1}}, "hybrid_r"},
        Case{"DELORA", json::object(), "Conv1D"}, Case{"C3A", json::object(), "Conv1D"},
        Case{"C3A", {{"init_weights", "ones"}}, "init_weights"},
        Case{"OFT", {{"r", 3}, {"oft_block_size", 3}}, "oft_block_size"},
        Case{"OFT", {{"module_dropout", 1.5}}, "module_dropout"}, Case{"ROAD", {{"group_size", 8}}, "Conv1D"},
        Case{"ROAD", {{"group_size", 5}}, "group_size"}, Case{"ROAD", {{"variant", "road_3"}}, "variant"},
        Case{"ROAD", {{"group_size", 64}, {"target_modules", {"lm_head"}}}, "group_size"},
        Case{"SHIRA", json::object(), "Conv1D"}, Case{"SHIRA", {{"r", 40}, {"target_modules", {"lm_head"}}}, "places"},
        Case{"SHIRA", {{"random_seed", 2.5}}, "random_seed"}, Case{"WAVEFT", {{"n_frequency", 1000000}}, "n_frequency"},
        Case{"WAVEFT", {{"wavelet_family", "haar"}}, "wavelet_family"},
        Case{"WAVEFT", {{"wavelet_family", "coif5"}}, "use_idwt false"},
        Case{"HIRA", {{"init_weights", "pissa"}}, "init_weights"}, Case{"HIRA", {{"hira_dropout", 1}}, "hira_dropout"},
        Case{"BEFT", json::object(), "no default targets"}, Case{"PVERA", {{"generator_seed", 0.5}}, "generator_seed"},
        Case{"PSOFT", json::object(), "Conv1D"},
        Case{"PSOFT", {{"r", 1000}, {"target_modules", {"lm_head"}}}, "smaller side"},
        Case{"PSOFT", {{"psoft_svd", "half"}}, "psoft_svd"}, Case{"PSOFT", {{"ab_svd_init", "svd"}}, "ab_svd_init"},
        Case{"PSOFT", {{"cayley_neumann_eps", 1}}, "cayley_neumann_eps"},
        Case{"PSOFT", {{"psoft_alpha", 0}}, "psoft_alpha"}, Case{"UNILORA", {{"theta_d_length", 0}}, "theta_d_length"},
        Case{"UNILORA", {{"init_theta_d_bound", 0}}, "init_theta_d_bound"},
        Case{"UNILORA", {{"proj_seed", -1}}, "proj_seed"}, Case{"PVERA", {{"pvera_dropout", 1}}, "pvera_dropout"},
        Case{"BEFT", {{"target_modules", {"c_attn"}}}, "Conv1D"},
        Case{"LN_TUNING", {{"target_modules", {"c_attn"}}}, "no norm"},
        Case{"TRAINABLE_TOKENS", {{"token_indices", {100000}}}, "100000"},
        Case{"TRAINABLE_TOKENS", json::object(), "token_indices"},
        Case{"TRAINABLE_TOKENS", {{"token_indices", {3}}, {"target_modules", {"c_attn"}}}, "no embedding and no head"},
        Case{"LORA", {{"trainable_token_indices", {{"c_attn", {3}}}}}, "no embedding and no head"},
        Case{"PREFIX_TUNING", {{"num_virtual_tokens", 2}, {"token_dim", 6}}, "token_dim"},
        Case{"PREFIX_TUNING", {{"num_virtual_tokens", 2}, {"num_layers", 1}}, "num_layers"},
        Case{"LORA", {{"alora_invocation_tokens", json::array()}}, "alora_invocation_tokens"},
        Case{"LORA", {{"alora_invocation_tokens", {5}}, {"use_dora", true}}, "alora_invocation_tokens"},
        Case{"LORA", {{"alora_invocation_tokens", {5}}, {"target_modules", {"wte"}}}, "alora_invocation_tokens"},
        Case{"LORA", {{"init_lora_weights", "loftq"}, {"loftq_config", {{"loftq_iter", 0}}}}, "loftq_iter"},
        Case{"LORA", {{"init_lora_weights", "pissa_niter_x"}}, "pissa_niter_x"},
        Case{"LORA", {{"init_lora_weights", "corda"}}, "corda"}, Case{"LORA", {{"use_new_idea", true}}, "use_new_idea"},
        Case{"LORA", {{"kasa_config", {{"beta", 1}}}}, "kasa_config"},
        Case{"LORA", {{"ensure_weight_tying", true}, {"target_modules", {"lm_head"}}}, "ensure_weight_tying"},
        Case{"LORA", {{"trainable_token_indices", {{"wte", {3}}, {"lm_head", {4}}}}}, "give both the same ids"},
        Case{"LORA", {{"trainable_token_indices", {{"lm_head", {4}}}}}, "give both the same ids"},
        Case{"LORA", {{"rank_pattern", {{"c_attn", 2.5}}}}, "rank_pattern.c_attn"},
        Case{"LORA", {{"alpha_pattern", {{"c_attn", "2"}}}}, "alpha_pattern.c_attn"},
        Case{"LORA", {{"layers_to_transform", {0, 0.5}}}, "layers_to_transform[1]"},
        Case{"LORA", {{"target_modules", {"c_attn", 1}}}, "target_modules[1]"},
        Case{"TRAINABLE_TOKENS", {{"token_indices", {3, 8.5}}}, "token_indices[1]"},
        Case{"PROMPT_TUNING", {{"tokenizer_kwargs", {{"use_fast", false}}}}, "tokenizer_kwargs"},
        Case{"ADALORA", {{"tinit", 4}, {"tfinal", 4}, {"total_step", 8}}, "total_step"},
        Case{"ADALORA", {{"orth_reg_weight", -1}}, "orth_reg_weight"},
        Case{"ADALORA", {{"rank_pattern", {{"wte", 3}}}}, "rank_pattern"}));

}  // namespace
}  // namespace tessera::peft
