// A user's own module, sharded: tessera launch --cpu --num_processes 2 build/own_module
#include <ATen/ATen.h>

#include <cstdio>

#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/nn/block.h"
#include "tessera/tensor/random.h"

using namespace tessera;

struct MlpBlock : nn::Layer {  // derive from nn::Layer (or nn::Block), write forward_impl, say the class's name
  at::Tensor up = register_parameter("up", at::randn({256, 64}) / 8),
             down = register_parameter("down", at::randn({64, 256}) / 16);
  std::string class_name() const override { return "MlpBlock"; }
  at::Tensor forward_impl(at::Tensor x) override { return x + at::linear(at::gelu(at::linear(x, up)), down); }
};

struct Net : nn::Layer {
  std::vector<std::shared_ptr<MlpBlock>> blocks;
  Net() {
    for (int i = 0; i < 4; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<MlpBlock>()));
  }
  std::string class_name() const override { return "Net"; }
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& block : blocks) x = (*block)(x);
    return x;
  }
};

int main() {
  const auto world = comm::connect();  // of `tessera launch`, torchrun or mpirun; alone: one rank
  manual_seed(1);                      // the same values on every rank
  Net net;
  auto sharded = fsdp::fully_shard(
      net, world, {.wrap = fsdp::wrap_classes({"MlpBlock"}), .precision = {.reduce_dtype = at::kFloat}});
  optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), {.lr = 1e-3});
  manual_seed(2, world->rank());  // each rank has its own data; a run that goes on has that of the steps to come
  if (checkpoint::has_training_state("own_module_state"))
    checkpoint::load_training_state(*sharded, &optimizer, "own_module_state");
  if (world->rank() == 0) std::puts(sharded->to_string().c_str());

  for (int step = 0; step < 20; ++step) {
    const auto x = at::randn({32, 64});
    auto loss = (net(x) - at::sin(x)).pow(2).mean();
    loss.backward();
    sharded->clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (world->rank() == 0 && step % 5 == 4) std::printf("step %2d  loss %.4f\n", step + 1, loss.item<double>());
  }
  checkpoint::save_training_state(*sharded, optimizer, "own_module_state");
  checkpoint::save_weights(*sharded,
                           "own_module.safetensors");  // FsdpOptions::source = io::open_weights(...) reads it
}
