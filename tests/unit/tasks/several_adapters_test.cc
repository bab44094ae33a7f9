// Several adapters on one model: each computes what it computes alone.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>

#include "support/compare.h"
#include "tasks/assemble.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

const std::string kAdapterGoldens = std::string(TESSERA_TEST_DATA) + "/goldens/";

struct Named {
  const char* base;
  std::vector<std::pair<std::string, std::string>> adapters;  // name, folder below the goldens
};

std::vector<peft::AdapterFolder> folders(const Named& named) {
  std::vector<peft::AdapterFolder> out;
  for (const auto& [name, folder] : named.adapters) out.push_back({name, kAdapterGoldens + folder});
  return out;
}

Assembled loaded(const Named& named, std::vector<peft::AdapterFolder> several, const std::string& one,
                 const std::shared_ptr<comm::Communicator>& group) {
  auto a = assemble(
      {.model_folder = kAdapterGoldens + "B_train/" + named.base, .adapter_folder = one, .several = std::move(several)},
      group);
  a.model->eval();
  return a;
}

at::Tensor logits(const Assembled& a, const at::Tensor& ids) {
  models::ModelInput in;
  in.input_ids = ids;
  if (a.config.kind == models::ModelKind::kSeq2Seq) in.decoder_input_ids = ids.slice(1, 0, 4);
  const torch::NoGradGuard no_grad;
  return (*a.model)(in).logits;
}

void expect_each_as_alone(const Named& named, const std::shared_ptr<comm::Communicator>& group) {
  const auto all = folders(named);
  const auto ids = (torch::arange(14) * 5 % 29 + 3).view({2, 7});
  const auto together = loaded(named, all, "", group);
  const auto base = logits(loaded(named, {}, "", group), ids);
  for (int i = static_cast<int>(all.size()) - 1; i >= 0; --i) {
    const auto& adapter = all[static_cast<std::size_t>(i)];
    together.several->use(together.several->number_of(adapter.name));
    test::expect_close(logits(together, ids), logits(loaded(named, {}, adapter.folder, group), ids), 1e-6,
                       adapter.name);
    together.several->use(peft::kBaseModel);
    test::expect_close(logits(together, ids), base, 1e-6, "the base model after " + adapter.name);
  }
}

const Named kLlama = {"base_llama",
                      {{"first", "J_peft/combine/adapters/first"},
                       {"third", "J_peft/combine/adapters/third"},
                       {"dora", "B_train/llama_dora/adapter_final"},
                       {"embed", "B_train/llama_lora_embed/adapter_final"},
                       {"ia3", "J_peft/llama_ia3/adapter_final"},
                       {"loha", "J_peft/llama_loha/adapter_final"},
                       {"lokr", "J_peft/llama_lokr/adapter_final"},
                       {"oft", "J_peft/llama_oft/adapter_final"},
                       {"hra", "J_peft/llama_hra/adapter_final"},
                       {"miss", "J_peft/llama_miss/adapter_final"},
                       {"fourier", "J_peft/llama_fourierft/adapter_final"},
                       {"boft", "J_peft/llama_boft/adapter_final"},
                       {"road", "J_peft/llama_road/adapter_final"},
                       {"shira", "J_peft/llama_shira/adapter_final"},
                       {"hira", "J_peft/llama_hira/adapter_final"},
                       {"beft", "J_peft/llama_beft/adapter_final"},
                       {"waveft", "J_peft/llama_waveft/adapter_final"}}};
const Named kT5 = {"base_t5", {{"lora", "B_train/t5_lora_qv/adapter_final"}, {"ia3", "J_peft/t5_ia3/adapter_final"}}};

TEST(SeveralAdapters, EachComputesWhatItComputesAlone) {
  expect_each_as_alone(kLlama, comm::make_solo());
  expect_each_as_alone(kT5, comm::make_solo());
}

TEST(SeveralAdapters, ShardedToo) {
  const Named few = {"base_llama", {kLlama.adapters[0], kLlama.adapters[2], kLlama.adapters[6]}};
  comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) { expect_each_as_alone(few, group); });
}

TEST(SeveralAdapters, RefuseByNameWhatDoesNotSitInLayers) {
  const auto refusal = [](const std::string& folder) {
    const Named named = {"base_llama", {{"good", "J_peft/combine/adapters/first"}, {"odd", folder}}};
    try {
      loaded(named, folders(named), "", comm::make_solo());
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("nothing was refused");
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"J_peft/llama_prompt/adapter_final", "virtual tokens"},
      {"J_peft/llama_prefix/adapter_final", "PREFIX_TUNING"},
      {"J_peft/llama_ln/adapter_final", "own weights"},
      {"J_peft/llama_vera/adapter_final", "shares tensors"},
      {"J_peft/llama_lora_pissa/adapter_final", "part of the base model's weights"},
      {"J_peft/llama_ia3_save_lm_head/adapter_final", "modules_to_save"}};
  for (const auto& [folder, text] : cases) {
    const auto message = refusal(folder);
    EXPECT_NE(message.find("adapter 'odd'"), std::string::npos) << message;
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }
  const auto together = loaded(kT5, folders(kT5), "", comm::make_solo());
  EXPECT_THROW(together.several->number_of("nobody"), ConfigError);
}

}  // namespace
}  // namespace tessera::tasks
