// AdamW and schedules against torch.optim and transformers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "io/tensor_source.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {
namespace {

std::string data(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/optim/" + name;
}

void expect_same_steps(const std::string& file, AdamWOptions options) {
  const auto problem = io::open_safetensors(data("problem.safetensors"));
  const auto expected = io::open_safetensors(data(file));
  const std::vector<std::string> names = {"b", "emb", "w"};
  std::vector<at::Tensor> parameters;
  for (const auto& n : names)
    parameters.push_back(io::read_tensor(*problem, "init." + n).clone().set_requires_grad(true));
  AdamW optimizer(parameters, std::move(options));
  for (int step = 0; step < 20; ++step) {
    const auto prefix = std::to_string(step) + ".";
    for (std::size_t i = 0; i < names.size(); ++i)
      parameters[i].mutable_grad() = io::read_tensor(*problem, "grad" + prefix + names[i]);
    optimizer.step();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto want = io::read_tensor(*expected, "step" + prefix + names[i]);
      EXPECT_LE((parameters[i].detach() - want).abs().max().item<float>(), 2e-6) << "step " << step << ' ' << names[i];
    }
  }
  for (const auto& [key, tensors] : optimizer.state())
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto want = io::read_tensor(*expected, "state." + names[i] + "." + key);
      EXPECT_TRUE(at::allclose(tensors[i], want, 1e-5, 1e-8)) << key << ' ' << names[i];
    }
}

TEST(AdamWGolden, Defaults) {
  expect_same_steps("adamw.safetensors", {.lr = 0.01, .weight_decay = 0.01});
}

TEST(AdamWGolden, OtherBetas) {
  expect_same_steps("adamw_betas.safetensors",
                    {.lr = 0.003, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1});
}

TEST(ScheduleGolden, MatchesTransformers) {
  const auto file = nlohmann::json::parse(std::ifstream(data("schedules.json")));
  ASSERT_FALSE(file["schedules"].empty());
  for (const auto& s : file["schedules"]) {
    const auto& kwargs = s["kwargs"];
    const auto values = s["values"].get<std::vector<double>>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto got =
          s["lr"].get<double>() * schedule(s["name"], static_cast<std::int64_t>(i), kwargs.value("num_warmup_steps", 0),
                                           kwargs.value("num_training_steps", 0));
      EXPECT_NEAR(got, values[i], 1e-9 * s["lr"].get<double>()) << s["name"] << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace tessera::optim
