// torchao's AdamW with 4- and 8-bit states: its codes and scales, whole and in pieces that cut bytes in two.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/sharded_problem.h"
#include "support/temp_folder.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::optim::torchao_states {
namespace {

using namespace sharded_problem;

const std::vector<Recipe> kTorchao = {
    {.optimizer = "adamw_torch_4bit", .args = "", .weight_decay = 0.01},
    {.optimizer = "adamw_torch_8bit", .args = "beta1=0.8", .weight_decay = 0.01, .beta2 = 0.99, .eps = 1e-6}};

TEST(Torchao, HasItsCodesScalesAndParameters) {
  const auto problem = open("torchao_problem"), expected = open("torchao_expected");
  for (const auto& r : kTorchao) expect_upstream(run(r, *problem, 0, 4, 1), *expected, r.optimizer + ".", true);
}

TEST(Torchao, AnyNumberOfRanksHasTheBitsOfOne) {
  const auto problem = open("torchao_problem");
  for (const auto& r : kTorchao) {
    const auto one = run(r, *problem, 0, 4, 1);
    for (const int world : {2, 3, 5, 40}) {  // of 5 one begins in a byte; 40: nearly all do
      const auto some = run(r, *problem, 0, 4, world, nullptr, at::kFloat, world == 3 ? 0.25 : 1);
      expect_equal(one, some, r.optimizer + " on " + std::to_string(world));
    }
  }
}

TEST(Torchao, StateContinuesOnAnotherNumberOfRanksAndOnADisk) {
  const auto problem = open("torchao_problem");
  const auto folder = test::TempFolder::on_disk("torchao_state");
  for (const auto& r : kTorchao) {
    const auto through = run(r, *problem, 0, 4, 1), half = run(r, *problem, 0, 2, 5);
    const auto load = from_result(half, 2);
    for (const int world : {1, 3, 40}) expect_equal(through, run(r, *problem, 2, 4, world, load), r.optimizer);
    const Loader on_disk = [&](Shard& shard, Optimizer& o) {
      o.keep_state_in(std::make_shared<tensor::DiskStore>(folder.path()));
      load(shard, o);
    };
    expect_equal(through, run(r, *problem, 2, 4, 5, on_disk), r.optimizer + " on a disk");
  }
}

TEST(Torchao, PacksWholeBlocksOfLargeParameters) {
  const auto bytes_of = [](const std::string& name, std::int64_t numel) {
    auto p = at::ones({numel}).set_requires_grad(true);
    auto slices = whole_slices({p});
    slices[0].full_state = true;  // bitsandbytes' exception for embeddings is not torchao's
    std::size_t bytes = 0;
    for (const auto& s : make_optimizer(name, {}, {p}, slices, nullptr)->state())
      if (!s.replicated) bytes += s.local.nbytes();
    return bytes;
  };
  EXPECT_EQ(bytes_of("adamw_torch_4bit", 4096), 2u * (2048 + 32 * 4));
  EXPECT_EQ(bytes_of("adamw_torch_8bit", 4096), 2u * (4096 + 16 * 4));
  EXPECT_EQ(bytes_of("adamw_torch_4bit", 4224), 2u * (2112 + 33 * 4));
  EXPECT_EQ(bytes_of("adamw_torch_8bit", 4224), 2u * 4 * 4224);
  EXPECT_EQ(bytes_of("adamw_torch_4bit", 4095), 2u * 4 * 4095);
}

TEST(Torchao, RefusesCodesOfAnotherTable) {
  auto p = at::ones({4096}).set_requires_grad(true);
  const auto optimizer = make_optimizer("adamw_torch_4bit", {}, {p}, whole_slices({p}), nullptr);
  for (auto& s : optimizer->state())
    if (s.state == "exp_avg_sq.qmap") s.local[3] = 0.5;
  p.mutable_grad() = at::ones({4096});
  try {
    optimizer->step();
    FAIL() << "the table was not checked";
  } catch (const CheckpointError& e) {
    EXPECT_NE(std::string(e.what()).find("another table than torchao's (exp_avg_sq.qmap)"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace tessera::optim::torchao_states
