// Values that a seed in the configuration decides are those that PEFT drew.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "peft/methods/fourierft.h"
#include "peft/methods/randlora.h"
#include "peft/methods/vera.h"
#include "tessera/io/tensor_source.h"
#include "unit/peft/with_adapter.h"

namespace tessera::peft {
namespace {

const std::string kRuns = std::string(TESSERA_TEST_DATA) + "/goldens/J_peft/";

at::Tensor frozen(const std::string& run, const std::string& name) {
  return io::read_tensor(*io::open_safetensors(kRuns + run + "/frozen.safetensors"), name);
}

class SharedBases : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(SharedBases, AreDrawnAsPeftDrawsThem) {
  const auto [run, name] = GetParam();
  const auto llama = load(*read_adapter_config(kRuns + run + "/adapter_init"), "base_llama");
  const auto parameters = llama.model->named_parameters();
  for (const char* side : {"A", "B"}) {
    const auto ours = std::string(name) + side + ".default";
    EXPECT_TRUE(torch::allclose(parameters[ours], frozen(run, "base_model." + ours), 1e-6, 1e-7)) << ours;
    EXPECT_FALSE(parameters[ours].requires_grad());
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, SharedBases,
                         testing::Values(std::pair{"llama_vera", "vera_"}, std::pair{"llama_randlora", "randlora_"}));

TEST(FourierFt, PlacesAreThoseOfTorchsPermutation) {
  const auto method = read_adapter_config(kRuns + "llama_fourierft/adapter_init");
  const auto& fourier = dynamic_cast<const FourierFt&>(*method);
  const auto rows = frozen("llama_fourierft", "base_model.model.model.layers.0.mlp.down_proj.indices");  // [2, n]
  EXPECT_TRUE(torch::equal(fourier.places({"model.layers.0.mlp.down_proj", 36, 24}),
                           rows.select(0, 0) * 36 + rows.select(0, 1)));
}

class PlacesOfShira : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(PlacesOfShira, AreThoseThatPeftDraws) {
  const auto [run, base] = GetParam();
  const auto folder = kRuns + run + "/adapter_init";
  const auto loaded = load(*read_adapter_config(folder), base);
  const auto file = io::open_safetensors(folder + "/adapter_model.safetensors");
  const auto ours = loaded.report.method->in_file({});
  EXPECT_GE(ours.size(), 4U);
  for (const auto& [name, places] : ours) EXPECT_TRUE(torch::equal(places, io::read_tensor(*file, name))) << name;
}

INSTANTIATE_TEST_SUITE_P(Goldens, PlacesOfShira,
                         testing::Values(std::pair{"llama_shira", "base_llama"},
                                         std::pair{"bert_shira_cls", "base_bert"}));

}  // namespace
}  // namespace tessera::peft
