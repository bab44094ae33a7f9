// Every optimizer and schedule against torch.optim, transformers and bitsandbytes; whole and in pieces.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "support/goldens.h"
#include "support/sharded_problem.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {
namespace {

using nlohmann::json;

std::string data(const std::string& name) {
  return (test::goldens("F_optim") / name).string();
}
json read_json(const std::string& name) {
  return test::read_golden(data(name));
}
bool there_is(const std::string& name) {
  return std::filesystem::exists(data(name));
}

/// The parameters of the problem.
const std::vector<std::string>& names() {
  static const auto names = sharded_problem::names_of(*io::open_safetensors(data("problem.safetensors")));
  return names;
}

struct Case {
  std::string optimizer;
  OptimizerOptions options;
};

/// An upstream class: its name here, and the defaults of its arguments that are not those of make_optimizer().
struct Class {
  std::string optimizer;
  json defaults;
};

const std::map<std::string, Class>& classes() {
  static const std::map<std::string, Class> classes = {
      {"torch.AdamW", {"adamw_torch", {{"lr", 1e-3}, {"weight_decay", 0.01}}}},
      {"torch.Adam", {"adam", {{"lr", 1e-3}}}},
      {"torch.SGD", {"sgd", {{"lr", 1e-3}}}},
      {"torch.Adafactor", {"torch_adafactor", {{"lr", 1e-2}}}},
      {"hf.Adafactor", {"adafactor", {{"lr", nullptr}, {"scale_parameter", true}, {"relative_step", true}}}},
      {"bnb.Lion", {"lion_32bit", {{"lr", 1e-4}, {"betas", {0.9, 0.99}}}}},
      {"bnb.AdamW", {"paged_adamw_32bit", {{"lr", 1e-3}, {"weight_decay", 0.01}}}},
      {"torch.RMSprop", {"rmsprop", {{"lr", 1e-2}}}},
      {"torch.Adagrad", {"adagrad", {{"lr", 1e-2}}}}};
  return classes;
}

/// The upstream class and its arguments in the words of make_optimizer().
Case translate(const json& entry) {
  const Class& c = classes().at(entry["library"].get<std::string>() + "." + entry["class"].get<std::string>());
  json arguments = c.defaults;
  arguments.update(entry["kwargs"]);
  Case out{c.optimizer, {}};
  const auto add = [&](const std::string& key, const json& value) {
    if (value.is_null()) return;
    auto& args = out.options.optim_args;
    args += (args.empty() ? "" : ",") + key + "=" + value.dump();
  };
  for (const auto& [key, value] : arguments.items()) {
    if (key == "lr") {
      out.options.lr = value.is_null() ? 0 : value.get<double>();
    } else if (key == "betas") {
      add("beta1", value[0]), add("beta2", value[1]);
    } else if (key == "eps" && value.is_array()) {
      add("eps1", value[0]), add("eps2", value[1]);
    } else {
      add(key, value);
    }
  }
  return out;
}

/// The optimizers of the set that upstream could run and that have a name here.
std::map<std::string, json> optimizers() {
  std::map<std::string, json> found;
  if (!there_is("expect.json")) return found;
  const auto expect = read_json("expect.json");
  for (const auto& [golden, entry] : expect.at("optimizers").items()) {
    if (entry.contains("error")) continue;
    const auto name = entry["library"].get<std::string>() + "." + entry["class"].get<std::string>();
    EXPECT_TRUE(classes().contains(name)) << "F_optim/" << golden << ": " << name << " is not known to this test";
    if (classes().contains(name)) found[golden] = entry;
  }
  EXPECT_FALSE(found.empty());
  return found;
}

std::string state_key(const json& entry, const std::string& state) {
  if (entry["library"] == "bnb") return state == "exp_avg_sq" ? "state2" : "state1";
  return state;
}

void replay(const std::string& golden, const json& entry, std::shared_ptr<comm::Communicator> group) {
  const Case c = translate(entry);
  const auto problem = io::open_safetensors(data("problem.safetensors"));
  const auto expected = io::open_safetensors(data(golden + ".safetensors"));
  auto shard = sharded_problem::cut(*problem, group->rank(), group->size());
  const auto optimizer = make_optimizer(c.optimizer, c.options, {shard.flat}, shard.slices, group);
  for (int step = 0; step < 20; ++step) {
    shard.flat.mutable_grad() = sharded_problem::part_of(*problem, "grad" + std::to_string(step) + ".", shard);
    optimizer->step();
    const auto want = sharded_problem::part_of(*expected, "step" + std::to_string(step) + ".", shard);
    const float largest = std::max(1.0F, want.abs().max().item<float>());
    EXPECT_LE((shard.flat.detach() - want).abs().max().item<float>(), 2e-6 * largest) << golden << " step " << step;
  }
  int states = 0;
  visit_full_state(*optimizer, *group, [&](const std::string& name, const std::string& state, const at::Tensor& t) {
    const auto want = io::read_tensor(*expected, "state." + name + "." + state_key(entry, state));
    ASSERT_EQ(t.sizes(), want.sizes()) << golden << ' ' << state;
    EXPECT_TRUE(at::allclose(t, want, 1e-5, 1e-6)) << golden << ' ' << name << ' ' << state;
    ++states;
  });
  int listed = 0;
  for (const auto& info : expected->tensors())
    listed += info.name.starts_with("state.") && !info.name.ends_with(".step") && !info.name.ends_with(".RMS");
  EXPECT_EQ(states, listed) << golden;
}

TEST(OptimizerGolden, EveryOptimizerOnOneRank) {
  for (const auto& [golden, entry] : optimizers()) replay(golden, entry, comm::make_solo());
}

TEST(OptimizerGolden, EveryOptimizerInPiecesOverTwoThreeAndFiveRanks) {
  for (int world : {2, 3, 5})
    for (const auto& [golden, entry] : optimizers())
      comm::run_threads(world, [&, g = golden, e = entry](auto group) { replay(g, e, group); });
}

TEST(ScheduleGolden, EverySchedule) {
  if (!there_is("schedules.json")) return;
  const auto file = read_json("schedules.json");
  ASSERT_FALSE(file["schedules"].empty());
  for (const auto& s : file["schedules"]) {
    const std::string name = s["name"];
    const double lr = s["lr"];
    auto kwargs = s["kwargs"];
    ScheduleOptions options{lr, kwargs.value("num_warmup_steps", 0), kwargs.value("num_training_steps", 0), ""};
    if (!name.starts_with("torch:")) kwargs = kwargs.value("scheduler_specific_kwargs", json::object());
    options.kwargs_json = kwargs.dump();
    const auto schedule = make_schedule(name, options);
    const auto values = s["values"].get<std::vector<double>>();
    ASSERT_FALSE(values.empty());
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(schedule->lr(static_cast<std::int64_t>(i)), values[i], 1e-9 * lr) << s["name"] << ' ' << i;
  }
}

/// Three parameters whose gradients are given.
struct Given : nn::Layer {
  Given() {
    for (const auto& n : names()) register_parameter(n, at::zeros_like(grads().at(n)));
  }
  static const std::map<std::string, at::Tensor>& grads() {
    static const auto map = [] {
      const auto problem = io::open_safetensors(data("problem.safetensors"));
      std::map<std::string, at::Tensor> m;
      for (const auto& n : names()) m[n] = io::read_tensor(*problem, "grad3." + n);
      return m;
    }();
    return map;
  }
  std::string class_name() const override { return "Given"; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    auto loss = x.sum() * 0;
    for (auto& p : named_parameters()) loss = loss + (p.value() * grads().at(p.key())).sum();
    return loss;
  }
};

/// expect.json does not say which parameter "first" belongs to: the one whose gradient is so where nothing was clipped.
std::string first_parameter(const json& clips) {
  for (const auto& [key, entry] : clips.items()) {
    const auto first = at::tensor(entry["first"].get<std::vector<float>>());
    for (const auto& [name, grad] : Given::grads()) {
      const auto begin = grad.view(-1).narrow(0, 0, std::min(first.numel(), grad.numel()));
      if (at::equal(begin, first)) return name;
    }
  }
  throw std::runtime_error("clip_grad3: no gradient of the problem begins as one that was not clipped");
}

TEST(ClippingGolden, NormsAndClippedGradientsForEveryP) {
  if (!there_is("expect.json")) return;
  const auto clips = read_json("expect.json")["clip_grad3"];
  ASSERT_FALSE(clips.empty());
  const auto parameter = first_parameter(clips);
  for (int world : {1, 2, 3})
    for (const auto& [key, entry] : clips.items()) {
      const auto p = key.starts_with("norminf") ? INFINITY : std::stod(key.substr(4));
      const auto max = std::stod(key.substr(key.find("max") + 3));
      comm::run_threads(world, [&, &key = key, &entry = entry](auto group) {
        Given module;
        const auto sharded = fsdp::fully_shard(module, group, {});
        module(at::ones({1})).backward();
        const auto norm = sharded->clip_grad_norm(max, p);
        EXPECT_NEAR(norm / entry["total_norm"].template get<double>(), 1, 1e-6) << key;
        sharded->visit_full_grads([&](const std::string& name, const at::Tensor& grad) {
          if (name != parameter) return;
          const auto first = entry["first"].template get<std::vector<float>>();
          for (std::size_t i = 0; i < first.size(); ++i)
            EXPECT_NEAR(grad.view(-1)[static_cast<std::int64_t>(i)].template item<float>(), first[i],
                        2e-6 * std::max(1.0f, std::abs(first[i])))
                << key << ' ' << i;
        });
      });
    }
}

}  // namespace
}  // namespace tessera::optim
