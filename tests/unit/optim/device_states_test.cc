// Optimizers with states of few bits whose parameters lie on a device (a made-up one): what they are on the CPU, to
// within the rounding of libtorch's operators; in the CPU's bits where the device has a kernel for them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>

#include "optim/device_blocks.h"
#include "optim/state_codec.h"
#include "support/sharded_problem.h"

namespace tessera::optim::device_states {
namespace {

using namespace sharded_problem;

struct Case {
  std::string problem;
  Recipe recipe;
};

const std::vector<Case> kCases = {
    {"bnb_problem", {.optimizer = "adamw_8bit", .args = "", .weight_decay = 0.01}},
    {"bnb_problem", {.optimizer = "paged_lion_8bit", .args = "", .weight_decay = 0.1, .beta2 = 0.99}},
    {"bnb_problem", {.optimizer = "ademamix_8bit", .args = "t_alpha=5,t_beta3=6", .weight_decay = 0.01}},
    {"bnb_problem", {.optimizer = "ademamix", .args = "", .weight_decay = 0.01}},
    {"bnb_problem", {.optimizer = "rmsprop_bnb_8bit", .args = "", .weight_decay = 0.01}},
    {"torchao_problem", {.optimizer = "adamw_torch_8bit", .args = "", .weight_decay = 0.01, .eps = 1e-6}},
    {"torchao_problem", {.optimizer = "adamw_torch_4bit", .args = "", .weight_decay = 0.01}}};

Recipe there(Recipe recipe) {
  recipe.there = true;
  return recipe;
}

/// Codes: hardly any differ, and those by one; all else to within rounding.
void expect_close(const Result& here, const Result& there, const std::string& what) {
  ASSERT_EQ(here.states.size(), there.states.size()) << what;
  for (const auto& [name, t] : here.parameters)
    EXPECT_LE((t - there.parameters.at(name)).abs().max().item<float>(), 2e-5) << what << ' ' << name;
  for (const auto& [name, t] : here.states) {
    const auto& other = there.states.at(name);
    if (t.scalar_type() != at::kByte) {
      EXPECT_TRUE(at::allclose(t, other, 1e-4, 1e-9)) << what << ' ' << name;
      continue;
    }
    EXPECT_LE(t.ne(other).sum().item<std::int64_t>(), t.numel() / 100) << what << ' ' << name;
  }
}

bool has_kernel(const Recipe& recipe) {
  return recipe.optimizer.starts_with("adamw_");
}

/// All of the parameters that are packed.
void expect_bits_of_codes(const Result& here, const Result& there, const std::string& what) {
  std::size_t codes = 0;
  for (const auto& [name, t] : here.states) {
    const auto parameter = name.substr(0, name.find('.'));
    const auto of_it = [&](const auto& state) {
      return state.first.starts_with(parameter + ".") && state.second.scalar_type() == at::kByte;
    };
    if (std::none_of(here.states.begin(), here.states.end(), of_it)) continue;
    codes += t.scalar_type() == at::kByte;
    EXPECT_TRUE(at::equal(t, there.states.at(name))) << what << ' ' << name;
    EXPECT_TRUE(at::equal(here.parameters.at(parameter), there.parameters.at(parameter))) << what << ' ' << parameter;
  }
  EXPECT_GT(codes, 0U) << what;
}

TEST(DeviceStates, AKernelGivesTheCpusBitsOnAnyNumberOfRanks) {
  const test::FakeKernels kernels;
  for (const auto& [problem, recipe] : kCases) {
    if (!has_kernel(recipe)) continue;
    const auto file = open(problem);
    const auto here = run(recipe, *file, 0, 4, 1);
    for (const int world : {1, 2, 3, 5, 40}) {
      const auto what = recipe.optimizer + " on " + std::to_string(world);
      const auto before = test::FakeKernels::launches();
      const auto on_device = run(there(recipe), *file, 0, 4, world);
      EXPECT_GT(test::FakeKernels::launches(), before) << what;
      expect_close(here, on_device, what);
      expect_bits_of_codes(here, on_device, what);
    }
  }
}

/// Blocks of zeros, with NaN and with infinities; of 4160 elements, which torchao leaves unpacked, the last is shorter.
TEST(DeviceStates, AKernelReadsGradientsOfAnyDtypeAndClippingsFactor) {
  const test::FakeKernels kernels;
  const auto values = at::randn({4160}), gradients = at::randn({4160});
  gradients.narrow(0, 256, 300).zero_();
  gradients[700] = NAN, gradients[1100] = INFINITY, gradients[1500] = -INFINITY;
  gradients.narrow(0, 2048, 256).mul_(1e-20);
  const auto run = [&](const std::string& name, bool there, std::int64_t numel, at::ScalarType dtype, double factor,
                       double beta1) {
    const auto device = there ? test::fake_device() : at::Device(at::kCPU);
    const auto here = [&](const at::Tensor& t) { return t.narrow(0, 0, numel).to(device, at::kFloat, false, true); };
    auto flat = here(values).set_requires_grad(true);
    const auto optimizer = make_optimizer(name, {.lr = 1e-2, .weight_decay = 0.1, .adam_beta1 = beta1}, {flat},
                                          {{.name = "w", .shape = {numel}, .numel = numel, .parameter = 0}}, nullptr);
    for (int step = 0; step < 3; ++step) {
      flat.mutable_grad() = here(gradients).to(dtype);
      if (factor != 1) optimizer->scale_next_gradients(factor);
      optimizer->step();
    }
    Tensors found = {{"parameter", flat.detach().to(at::kCPU)}};
    for (const auto& s : optimizer->state()) found[s.state] = s.local.to(at::kCPU);
    return found;
  };
  for (const auto& [name, numel] :
       {std::pair{"adamw_8bit", 4160}, {"adamw_torch_8bit", 4096}, {"adamw_torch_4bit", 4096}})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const auto& [factor, beta1] : {std::pair{1.0, 0.9}, {0.3, 0.4}}) {  // below 0.5 torch's lerp is another
        const auto what = std::string(name) + ' ' + c10::toString(dtype) + ' ' + std::to_string(factor) + ' ';
        const auto here = run(name, false, numel, dtype, factor, beta1);
        const auto before = test::FakeKernels::launches();
        const auto there = run(name, true, numel, dtype, factor, beta1);
        EXPECT_EQ(test::FakeKernels::launches(), before + 3) << what;
        for (const auto& [state, t] : here)
          EXPECT_TRUE(at::allclose(t, there.at(state), 0, 0, /*equal_nan=*/true)) << what << state;
      }
}

TEST(DeviceStates, AreThoseOfTheCpuOnAnyNumberOfRanks) {
  for (const auto& [problem, recipe] : kCases) {
    const auto file = open(problem);
    const auto here = run(recipe, *file, 0, 4, 1);
    for (const int world : {1, 2, 3, 5, 40})  // 40: hardly a block is whole
      expect_close(here, run(there(recipe), *file, 0, 4, world), recipe.optimizer + " on " + std::to_string(world));
  }
}

TEST(DeviceStates, GoOnFromTheCpusAndTheOtherWayRound) {
  for (const auto& [problem, recipe] : kCases) {
    const auto file = open(problem);
    const auto through = run(recipe, *file, 0, 4, 1);
    const auto half_there = run(there(recipe), *file, 0, 2, 3), half_here = run(recipe, *file, 0, 2, 3);
    expect_close(through, run(recipe, *file, 2, 4, 2, from_result(half_there, 2)), recipe.optimizer + " to the CPU");
    expect_close(through, run(there(recipe), *file, 2, 4, 2, from_result(half_here, 2)), recipe.optimizer + " there");
  }
}

TEST(DeviceStates, TakeClippingsFactorAndSixteenBitParameters) {
  const auto file = open("bnb_problem");
  const auto& recipe = kCases[0].recipe;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto here = run(recipe, *file, 0, 2, 1, nullptr, dtype, 0.25);
    const auto on_device = run(there(recipe), *file, 0, 2, 2, nullptr, dtype, 0.25);
    for (const auto& [name, t] : here.parameters)
      EXPECT_TRUE(at::allclose(t, on_device.parameters.at(name), dtype == at::kFloat ? 1e-6 : 8e-3)) << name;
  }
}

/// Slices that lie one behind the other are one launch where they take the same step, and have the values that they
/// have alone. Of 4160 elements the last block is not whole.
TEST(DeviceStates, SlicesThatAreUpdatedTogetherHaveTheirOwnBlocks) {
  const auto values = at::rand({3 * 4160}), gradients = at::rand({3 * 4160});
  const auto run = [&](bool there, std::int64_t numel, const std::vector<double>& rates) {
    const auto device = there ? test::fake_device() : at::Device(at::kCPU);
    auto flat = values.to(device, at::kFloat, false, /*copy=*/true).set_requires_grad(true);
    std::vector<ParameterSlice> slices;
    for (std::size_t i = 0; i < rates.size(); ++i)
      slices.push_back({.name = std::to_string(i),
                        .shape = {numel},
                        .numel = numel,
                        .parameter = 0,
                        .parameter_offset = static_cast<std::int64_t>(i) * numel,
                        .lr_scale = rates[i]});
    const auto optimizer = make_optimizer("adamw_8bit", {.lr = 1e-2}, {flat}, slices, nullptr);
    flat.mutable_grad() = gradients.to(device);
    optimizer->step();
    Tensors found = {{"parameters", flat.detach().to(at::kCPU)}};
    for (const auto& s : optimizer->state()) found[s.parameter + s.state] = s.local.to(at::kCPU);
    return found;
  };
  for (const auto& [numel, rates] :
       {std::pair{4096, std::vector<double>{1, 1, 1}}, {4096, {1, 2, 3}}, {4160, {1, 1, 1}}}) {
    const auto here = run(false, numel, rates), there = run(true, numel, rates);
    const test::FakeKernels kernels;
    const auto before = test::FakeKernels::launches();
    const auto by_kernel = run(true, numel, rates);
    EXPECT_EQ(test::FakeKernels::launches() - before, numel == 4096 && rates[1] == 1 ? 1 : 3);
    for (const auto& [name, t] : here) {
      EXPECT_TRUE(at::equal(t, by_kernel.at(name))) << name;
      if (t.is_floating_point())
        EXPECT_TRUE(at::allclose(t, there.at(name), 1e-6, 1e-7)) << name;
      else
        EXPECT_LE(t.ne(there.at(name)).sum().item<std::int64_t>(), 4) << name;
    }
  }
}

TEST(DeviceStates, ThresholdsGiveTheCodecsCodes) {
  at::Tensor x = at::cat({at::linspace(-1, 1, 40001), at::randn({4096})});
  for (const auto& codec : {bnb_state_codec(), torchao_state_codec(8), torchao_state_codec(4)})
    for (const bool with_signs : {true, false}) {
      const auto given = with_signs ? x.clone() : x.abs();
      const auto thresholds = code_thresholds(*codec, with_signs);
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(x.numel()));
      codec->encode(with_signs, given.const_data_ptr<float>(), x.numel(), 1.0f, codes.data());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const float value = given.const_data_ptr<float>()[i];
        const auto found = std::upper_bound(thresholds.begin(), thresholds.end(), value) - thresholds.begin();
        ASSERT_EQ(found, codes[i]) << codec->maker() << ' ' << value;
      }
    }
}

TEST(DeviceStates, ABlockOfZerosHasCodeZero) {
  const auto device = test::fake_device();
  for (const auto& codec : {bnb_state_codec(), torchao_state_codec(8), torchao_state_codec(4)}) {
    const DeviceBlocks blocks(codec, device);
    const auto numel = 2 * codec->block();
    auto codes = at::ones({numel / codec->codes_in_byte()}, at::kByte), expected = codes.clone();
    std::vector<std::uint8_t> each(static_cast<std::size_t>(codec->block()));
    const std::vector<float> zeros(each.size());
    codec->encode(false, zeros.data(), codec->block(), codec->scale_of(0), each.data());
    auto scales = at::ones({2}).to(device), there = codes.to(device);
    blocks.encode(false, at::zeros({numel}).to(device), there, scales);
    EXPECT_EQ(scales.to(at::kCPU)[0].item<float>(), codec->scale_of(0)) << codec->maker();
    const auto first = there.to(at::kCPU)[0].item<std::uint8_t>();
    EXPECT_EQ(codec->codes_in_byte() == 2 ? first >> 4 : first, each[0]) << codec->maker();
  }
}

}  // namespace
}  // namespace tessera::optim::device_states
