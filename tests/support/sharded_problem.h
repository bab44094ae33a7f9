#pragma once
// Optimizers on a problem in a file, on ranks that are threads: start values "init.w", gradients "step3.grad.w".
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/fake_device.h"
#include "tessera/comm/communicator.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"

namespace tessera::optim::sharded_problem {

using Tensors = std::map<std::string, at::Tensor>;

inline std::vector<std::string> names_of(const io::TensorSource& problem) {
  std::vector<std::string> names;
  for (const auto& info : problem.tensors())
    if (info.name.starts_with("init.")) names.push_back(info.name.substr(5));
  std::sort(names.begin(), names.end());
  return names;
}

/// The parameters one after the other, cut into `world` equal parts as sharding does: wherever that falls in a block.
struct Shard {
  at::Tensor flat;
  std::vector<ParameterSlice> slices;
  std::int64_t begin = 0;
};

inline Shard cut(const io::TensorSource& problem, int rank, int world, at::ScalarType dtype = at::kFloat) {
  Shard shard;
  std::vector<at::Tensor> parts;
  std::int64_t total = 0;
  for (const auto& n : names_of(problem)) {
    auto whole = io::read_tensor(problem, "init." + n);
    shard.slices.push_back({.name = n, .shape = whole.sizes().vec(), .offset = total});
    parts.push_back(whole.view(-1));
    total += whole.numel();
  }
  const auto part = (total + world - 1) / world;
  shard.begin = part * rank;
  const auto end = std::min(total, shard.begin + part);
  shard.flat = at::cat(parts).narrow(0, shard.begin, end - shard.begin).to(dtype).clone().set_requires_grad(true);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& s = shard.slices[i];
    const auto at = s.offset, from = std::max(shard.begin, at), to = std::min(end, at + parts[i].numel());
    s.offset = 0;
    if (from >= to) continue;
    s.offset = from - at;
    s.numel = to - from;
    s.parameter = 0;
    s.parameter_offset = from - shard.begin;
  }
  return shard;
}

/// This shard's part of tensors in a file, one a parameter: prefix + its name.
inline at::Tensor part_of(const io::TensorSource& file, const std::string& prefix, const Shard& shard) {
  std::vector<at::Tensor> wholes;
  for (const auto& slice : shard.slices)
    wholes.push_back(io::read_tensor(file, prefix + slice.name).view(-1).to(at::kFloat));
  return at::cat(wholes).narrow(0, shard.begin, shard.flat.numel()).to(shard.flat.options()).contiguous();
}

inline void set_gradient(const io::TensorSource& problem, int step, Shard& shard) {
  shard.flat.mutable_grad() = part_of(problem, "step" + std::to_string(step) + ".grad.", shard);
}

struct Recipe {
  std::string optimizer, args;
  double lr = 1e-3, weight_decay = 0, beta2 = 0.999, eps = 1e-8;
  bool low_rank = false;  // of matrices
  bool there = false;     // all of it lies on made-up devices
  OptimizerOptions options() const {
    return {.lr = lr, .weight_decay = weight_decay, .adam_beta2 = beta2, .adam_epsilon = eps, .optim_args = args};
  }
};

/// All parameters and states after some steps, whole.
struct Result {
  Tensors parameters, states;
};

inline Result collect(Shard& shard, Optimizer& optimizer, comm::Communicator& group) {
  Result result;
  auto flat = shard.flat.detach().to(at::kCPU, at::kFloat);
  for (const auto& slice : shard.slices) {
    auto whole = at::zeros({c10::multiply_integers(slice.shape)});
    if (slice.numel > 0)
      whole.narrow(0, slice.offset, slice.numel).copy_(flat.narrow(0, slice.parameter_offset, slice.numel));
    group.all_reduce(whole, comm::ReduceOp::kSum)->wait();
    result.parameters[slice.name] = whole.view(slice.shape);
  }
  visit_full_state(optimizer, group, [&](const std::string& name, const std::string& state, const at::Tensor& t) {
    result.states[name + "." + state] = t.clone();
  });
  return result;
}

using Loader = std::function<void(Shard&, Optimizer&)>;

/// Steps [from, to) on `world` ranks; `load` comes before them, `at_end` after them.
inline Result run(const Recipe& r, const io::TensorSource& problem, int from, int to, int world,
                  const Loader& load = nullptr, at::ScalarType dtype = at::kFloat, double factor = 1,
                  const Loader& at_end = nullptr) {
  Result result;
  comm::run_threads(world, [&](auto group) {
    auto shard = cut(problem, group->rank(), world, dtype);
    if (r.there)
      shard.flat =
          shard.flat.detach().to(test::fake_device(group->rank() % test::kFakeDevices)).set_requires_grad(true);
    for (auto& slice : shard.slices) slice.low_rank = r.low_rank && slice.shape.size() == 2;
    const auto optimizer = make_optimizer(r.optimizer, r.options(), {shard.flat}, shard.slices, group);
    if (load) load(shard, *optimizer);
    for (int step = from; step < to; ++step) {
      set_gradient(problem, step, shard);
      if (factor != 1) {
        shard.flat.mutable_grad() = shard.flat.grad() / factor;
        optimizer->scale_next_gradients(factor);
      }
      optimizer->step();
    }
    if (at_end) at_end(shard, *optimizer);
    auto mine = collect(shard, *optimizer, *group);
    if (group->rank() == 0) result = std::move(mine);
  });
  return result;
}

/// Continues from the whole tensors of an earlier run, at any number of ranks.
inline Loader from_result(const Result& saved, int steps) {
  return [&saved, steps](Shard& shard, Optimizer& optimizer) {
    const at::NoGradGuard no_grad;
    for (const auto& slice : shard.slices)
      if (slice.numel > 0)
        shard.flat.narrow(0, slice.parameter_offset, slice.numel)
            .copy_(saved.parameters.at(slice.name).view(-1).narrow(0, slice.offset, slice.numel));
    for (auto& s : optimizer.state())
      s.local.copy_(saved.states.at(s.parameter + "." + s.state).view(-1).narrow(0, s.offset, s.local.numel()));
    optimizer.set_steps(steps);
  };
}

inline void expect_equal(const Result& a, const Result& b, const std::string& what) {
  ASSERT_EQ(a.states.size(), b.states.size()) << what;
  for (const auto& [name, t] : a.parameters) EXPECT_TRUE(at::equal(t, b.parameters.at(name))) << what << ' ' << name;
  for (const auto& [name, t] : a.states) EXPECT_TRUE(at::equal(t, b.states.at(name))) << what << ' ' << name;
}

/// Of parameters near 1: kinds of processors differ in the last bit, bitsandbytes on two of them as well.
constexpr float kRounding = 2.5e-7f;

inline std::shared_ptr<io::TensorSource> open(const std::string& file) {
  return io::open_safetensors(std::string(TESSERA_TEST_DATA) + "/optim/" + file + ".safetensors");
}

/// Expected tensors are called `<prefix>param.w`, `<prefix>state.w.absmax1`.
inline void expect_upstream(const Result& found, const io::TensorSource& expected, const std::string& prefix,
                            bool maps) {
  std::size_t states = 0;
  for (const auto& info : expected.tensors()) {
    if (!info.name.starts_with(prefix)) continue;
    const auto key = info.name.substr(prefix.size());
    const auto want = io::read_tensor(expected, info.name);
    if (key.starts_with("param.")) {
      const auto p = found.parameters.at(key.substr(6));
      EXPECT_LE((p - want).abs().max().item<float>(), kRounding) << info.name;
    } else if (key.starts_with("state.")) {
      ++states;
      const auto s = found.states.at(key.substr(6));
      ASSERT_EQ(s.sizes(), want.sizes()) << info.name;
      EXPECT_EQ(s.scalar_type(), want.scalar_type()) << info.name;
      // Codes and scales are equal; a state in float that sees the parameter (weight decay in the gradient) has its
      // last bit.
      const auto is_values =
          s.is_floating_point() && s.sizes() == found.parameters.at(key.substr(6, key.find('.', 6) - 6)).sizes();
      EXPECT_TRUE(is_values ? at::allclose(s, want, 1e-6, 1e-12) : at::equal(s, want))
          << info.name << " differs in " << s.ne(want).sum().item<std::int64_t>();
    }
  }
  std::size_t listed = 0;
  for (const auto& [name, t] : found.states) listed += maps || name.find("qmap") == std::string::npos;
  EXPECT_EQ(states, listed) << prefix;
}

}  // namespace tessera::optim::sharded_problem
