// Every optimizer and schedule against torch.optim, transformers and bitsandbytes; whole and in pieces.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "io/tensor_source.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/factory.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {
namespace {

using nlohmann::json;

const std::vector<std::string> kNames = {"b", "emb", "w"};

std::string data(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/optim/" + name;
}
json read_json(const std::string& name) {
  return json::parse(std::ifstream(data(name)));
}

struct Case {
  std::string optimizer;
  OptimizerOptions options;
};

/// The upstream class and its arguments in the words of make_optimizer().
Case translate(const std::string& golden, const json& entry) {
  static const std::map<std::string, std::string> names = {
      {"torch.AdamW", "adamw_torch"},         {"torch.Adam", "adam"},        {"torch.SGD", "sgd"},
      {"torch.Adafactor", "torch_adafactor"}, {"hf.Adafactor", "adafactor"}, {"bnb.Lion", "lion_32bit"},
      {"bnb.AdamW", "paged_adamw_32bit"},     {"torch.RMSprop", "rmsprop"},  {"torch.Adagrad", "adagrad"}};
  Case c{names.at(entry["library"].get<std::string>() + "." + entry["class"].get<std::string>()), {}};
  if (golden == "bnb_lion") c.options.adam_beta2 = 0.99;  // the class's own default
  for (const auto& [key, value] : entry["kwargs"].items()) {
    if (key == "lr") {
      c.options.lr = value.is_null() ? 0 : value.get<double>();
      continue;
    }
    auto& args = c.options.optim_args;
    args += args.empty() ? "" : ",";
    if (key == "betas")
      args += "beta1=" + value[0].dump() + ",beta2=" + value[1].dump();
    else
      args += key + "=" + value.dump();
  }
  return c;
}

/// One flat tensor per rank: the three parameters one after the other, cut into `world` equal parts, as sharding does.
struct Flat {
  at::Tensor shard;
  std::vector<ParameterSlice> slices;
  std::int64_t begin = 0;
};

Flat flatten(const io::TensorSource& problem, int rank, int world) {
  Flat flat;
  std::vector<at::Tensor> parts;
  std::int64_t total = 0;
  for (const auto& n : kNames) {
    parts.push_back(io::read_tensor(problem, "init." + n));
    flat.slices.push_back({.name = n, .shape = parts.back().sizes().vec(), .offset = total});
    parts.back() = parts.back().view(-1);
    total += parts.back().numel();
  }
  const auto part = (total + world - 1) / world;
  flat.begin = part * rank;
  const auto end = std::min(total, flat.begin + part);
  flat.shard = at::cat(parts).narrow(0, flat.begin, end - flat.begin).clone().set_requires_grad(true);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& s = flat.slices[i];
    const auto at = s.offset, from = std::max(flat.begin, at), to = std::min(end, at + parts[i].numel());
    s.offset = 0;
    if (from >= to) continue;
    s.offset = from - at;
    s.numel = to - from;
    s.parameter = 0;
    s.parameter_offset = from - flat.begin;
  }
  return flat;
}

std::string state_key(const std::string& golden, const std::string& state) {
  if (golden == "bnb_lion") return "state1";
  if (golden == "bnb_adamw") return state == "exp_avg" ? "state1" : "state2";
  return state;
}

void replay(const std::string& golden, const Case& c, std::shared_ptr<comm::Communicator> group) {
  const auto problem = io::open_safetensors(data("problem.safetensors"));
  const auto expected = io::open_safetensors(data(golden + ".safetensors"));
  auto flat = flatten(*problem, group->rank(), group->size());
  const auto optimizer = make_optimizer(c.optimizer, c.options, {flat.shard}, flat.slices, group);
  for (int step = 0; step < 20; ++step) {
    std::vector<at::Tensor> grads, wants;
    for (const auto& n : kNames) {
      grads.push_back(io::read_tensor(*problem, "grad" + std::to_string(step) + "." + n).view(-1));
      wants.push_back(io::read_tensor(*expected, "step" + std::to_string(step) + "." + n).view(-1));
    }
    flat.shard.mutable_grad() = at::cat(grads).narrow(0, flat.begin, flat.shard.numel());
    optimizer->step();
    const auto want = at::cat(wants).narrow(0, flat.begin, flat.shard.numel());
    EXPECT_LE((flat.shard.detach() - want).abs().max().item<float>(), 2e-6) << golden << " step " << step;
  }
  int states = 0;
  visit_full_state(*optimizer, *group, [&](const std::string& name, const std::string& state, const at::Tensor& t) {
    const auto want = io::read_tensor(*expected, "state." + name + "." + state_key(golden, state));
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
  const auto expect = read_json("expect.json");
  ASSERT_EQ(expect["optimizers"].size(), 19u);
  for (const auto& [golden, entry] : expect["optimizers"].items())
    replay(golden, translate(golden, entry), comm::make_solo());
}

TEST(OptimizerGolden, EveryOptimizerInPiecesOverTwoThreeAndFiveRanks) {
  const auto expect = read_json("expect.json");
  for (int world : {2, 3, 5})
    for (const auto& [golden, entry] : expect["optimizers"].items())
      comm::run_threads(world, [&, g = golden, c = translate(golden, entry)](auto group) { replay(g, c, group); });
}

TEST(ScheduleGolden, EverySchedule) {
  const auto file = read_json("schedules.json");
  ASSERT_EQ(file["schedules"].size(), 19u);
  for (const auto& s : file["schedules"]) {
    const std::string name = s["name"];
    const double lr = s["lr"];
    auto kwargs = s["kwargs"];
    ScheduleOptions options{lr, kwargs.value("num_warmup_steps", 0), kwargs.value("num_training_steps", 0), ""};
    if (!name.starts_with("torch:")) kwargs = kwargs.value("scheduler_specific_kwargs", json::object());
    options.kwargs_json = kwargs.dump();
    const auto schedule = make_schedule(name, options);
    const auto values = s["values"].get<std::vector<double>>();
    ASSERT_EQ(values.size(), 100u);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(schedule->lr(static_cast<std::int64_t>(i)), values[i], 1e-9 * lr) << s["name"] << ' ' << i;
  }
}

/// Three parameters whose gradients are given.
struct Given : nn::Layer {
  Given() {
    for (const auto& n : kNames) register_parameter(n, at::zeros_like(grads().at(n)));
  }
  static const std::map<std::string, at::Tensor>& grads() {
    static const auto map = [] {
      const auto problem = io::open_safetensors(data("problem.safetensors"));
      std::map<std::string, at::Tensor> m;
      for (const auto& n : kNames) m[n] = io::read_tensor(*problem, "grad3." + n);
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

TEST(ClippingGolden, NormsAndClippedGradientsForEveryP) {
  const auto expect = read_json("expect.json");
  for (int world : {1, 2, 3})
    for (const auto& [key, entry] : expect["clip_grad3"].items()) {
      const auto p = key.starts_with("norminf") ? INFINITY : std::stod(key.substr(4));
      const auto max = std::stod(key.substr(key.find("max") + 3));
      comm::run_threads(world, [&, &key = key, &entry = entry](auto group) {
        Given module;
        const auto sharded = fsdp::fully_shard(module, group, {});
        module(at::ones({1})).backward();
        const auto norm = sharded->clip_grad_norm(max, p);
        EXPECT_NEAR(norm / entry["total_norm"].template get<double>(), 1, 1e-6) << key;
        sharded->visit_full_grads([&](const std::string& name, const at::Tensor& grad) {
          if (name != "w") return;
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
