// Parts that a user writes on the umbrella header alone (docs/guides/library.md): where weights come from, what is a
// unit, an adapter.
#include "tessera/tessera.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tessera {
namespace {

/// Element i of every tensor is sin(i) / 8.
class Sines final : public io::TensorSource {
 public:
  explicit Sines(std::vector<io::TensorInfo> tensors) : tensors_(std::move(tensors)) {}
  const std::vector<io::TensorInfo>& tensors() const override { return tensors_; }
  const io::TensorInfo* find(const std::string& name) const override {
    const auto at = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
    return at == tensors_.end() ? nullptr : &*at;
  }
  void read(const std::string&, std::int64_t begin, at::Tensor out) const override {
    out.copy_(at::sin(at::arange(begin, begin + out.numel(), at::kFloat)) / 8);
  }
  std::optional<io::MappedTensor> map(const std::string&) const override { return std::nullopt; }

 private:
  std::vector<io::TensorInfo> tensors_;
};

class OutputScale final : public nn::LinearAdapter {
 public:
  explicit OutputScale(std::int64_t features)
      : scale_(add_module("output_scale", "ParameterDict").register_parameter("default", at::ones({features}))) {}
  std::string class_name() const override { return "scaled.Linear"; }
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override { return layer.product(x) * scale_; }

 private:
  at::Tensor scale_;
};

/// Three frozen linear layers whose outputs are scaled by what is trained.
struct Net final : nn::Layer {
  std::vector<std::shared_ptr<nn::Linear>> layers;
  Net() {
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<nn::Linear>(7, 7)));
      layers.back()->weight.set_requires_grad(false);
      layers.back()->bias.set_requires_grad(false);
      layers.back()->attach(std::make_shared<OutputScale>(7));
    }
  }
  std::string class_name() const override { return "Net"; }
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& layer : layers) x = x + (*layer)(x);
    return x;
  }
};

std::shared_ptr<Sines> weights_of(const Net& net) {
  std::vector<io::TensorInfo> tensors;
  for (std::size_t i = 0; i < net.layers.size(); ++i) {
    const auto name = "layer" + std::to_string(i);
    tensors.push_back({name + ".bias", at::kFloat, {7}, "computed"});
    tensors.push_back({name + ".weight", at::kFloat, {7, 7}, "computed"});
  }
  return std::make_shared<Sines>(std::move(tensors));
}

/// The trained scales after three steps; every rank sees the same rows.
std::vector<at::Tensor> trained(int ranks) {
  std::vector<at::Tensor> result;
  comm::run_threads(ranks, [&](std::shared_ptr<comm::Communicator> world) {
    Net net;
    fsdp::FsdpOptions options;
    options.wrap = [](const std::string& name, const nn::HookedModule&) { return name.rfind("layer", 0) == 0; };
    options.source = weights_of(net);
    auto sharded = fsdp::fully_shard(net, world, options);
    optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), {.lr = 0.05});
    const auto x = at::sin(at::arange(28, at::kFloat)).reshape({4, 7});
    for (int step = 0; step < 3; ++step) {
      net(x).pow(2).mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<at::Tensor> whole;
    sharded->visit_full([&](const std::string& name, const at::Tensor& value) {
      if (name.find("output_scale") != std::string::npos) whole.push_back(value.clone());
    });
    if (world->rank() == 0) result = std::move(whole);
  });
  return result;
}

TEST(OwnParts, ASourceAPolicyAndAnAdapterTrainOnAnyNumberOfRanks) {
  const auto alone = trained(1);
  ASSERT_EQ(alone.size(), 3u);
  for (const auto& scale : alone) EXPECT_GT((scale - 1).abs().min().item<float>(), 0.01f);
  for (int ranks : {2, 3}) {
    const auto sharded = trained(ranks);
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::allclose(sharded[i], alone[i], 1e-5, 1e-6)) << ranks;
  }
}

}  // namespace
}  // namespace tessera
