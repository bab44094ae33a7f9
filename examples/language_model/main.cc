// A decoder language model written by hand and trained on the bytes of a text, fully sharded:
//
//   tessera launch --cpu --num_processes 2 build/language_model sonnets.txt out 120
//
// A second run in the same folder goes on where the first one stopped. Start here for a model of your own: change
// Decoder, keep main().
//
// Shapes: B rows, T bytes of a row, D width, H heads, K size of a head, V vocabulary.
#include <ATen/ATen.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "tessera/tessera.h"

using namespace tessera;

namespace {

constexpr std::int64_t kVocabulary = 256, kWidth = 128, kHeads = 4, kHeadSize = kWidth / kHeads, kHidden = 384;
constexpr std::int64_t kLayers = 4, kContext = 96, kRowsPerRank = 8, kSaveEvery = 30;

/// Rotary positions (Su et al. 2021): pairs of features turn by an angle that grows with the position.
at::Tensor rotate(const at::Tensor& x_BHTK) {
  const auto half = kHeadSize / 2;
  const auto frequency_k = at::pow(10000.0, at::arange(half, at::kFloat) / -static_cast<double>(half));
  const auto angle_Tk = at::outer(at::arange(x_BHTK.size(2), at::kFloat), frequency_k);
  const auto cos = angle_Tk.cos(), sin = angle_Tk.sin();
  const auto parts = x_BHTK.chunk(2, -1);
  return at::cat({parts[0] * cos - parts[1] * sin, parts[1] * cos + parts[0] * sin}, -1);
}

class Attention final : public nn::Layer {
 public:
  std::string class_name() const override { return "Attention"; }

 protected:
  at::Tensor forward_impl(at::Tensor x_BTD) override {
    const auto B = x_BTD.size(0), T = x_BTD.size(1);
    const auto qkv_3BHTK = (*qkv_)(x_BTD).view({B, T, 3, kHeads, kHeadSize}).permute({2, 0, 3, 1, 4});
    const auto mixed_BHTK = at::scaled_dot_product_attention(rotate(qkv_3BHTK[0]), rotate(qkv_3BHTK[1]), qkv_3BHTK[2],
                                                             {}, 0.0, /*is_causal=*/true);
    return (*out_)(mixed_BHTK.transpose(1, 2).reshape({B, T, kWidth}));
  }

 private:
  std::shared_ptr<nn::Linear> qkv_ = register_module("qkv", std::make_shared<nn::Linear>(kWidth, 3 * kWidth, false)),
                              out_ = register_module("out", std::make_shared<nn::Linear>(kWidth, kWidth, false));
};

/// SwiGLU (Shazeer 2020).
class Mlp final : public nn::Layer {
 public:
  std::string class_name() const override { return "Mlp"; }

 protected:
  at::Tensor forward_impl(at::Tensor x_BTD) override { return (*down_)(at::silu((*gate_)(x_BTD)) * (*up_)(x_BTD)); }

 private:
  std::shared_ptr<nn::Linear> gate_ = register_module("gate", std::make_shared<nn::Linear>(kWidth, kHidden, false)),
                              up_ = register_module("up", std::make_shared<nn::Linear>(kWidth, kHidden, false)),
                              down_ = register_module("down", std::make_shared<nn::Linear>(kHidden, kWidth, false));
};

/// What becomes a unit: its weights are gathered together, for its forward and its backward.
class DecoderBlock final : public nn::Layer {
 public:
  std::string class_name() const override { return "DecoderBlock"; }

 protected:
  at::Tensor forward_impl(at::Tensor x_BTD) override {
    x_BTD = x_BTD + (*attention_)((*attention_norm_)(x_BTD));
    return x_BTD + (*mlp_)((*mlp_norm_)(x_BTD));
  }

 private:
  std::shared_ptr<nn::RmsNorm> attention_norm_ =
                                   register_module("attention_norm", std::make_shared<nn::RmsNorm>(kWidth, 1e-5)),
                               mlp_norm_ = register_module("mlp_norm", std::make_shared<nn::RmsNorm>(kWidth, 1e-5));
  std::shared_ptr<Attention> attention_ = register_module("attention", std::make_shared<Attention>());
  std::shared_ptr<Mlp> mlp_ = register_module("mlp", std::make_shared<Mlp>());
};

/// Ids [B, T] -> logits [B, T, V].
class Decoder final : public nn::Layer {
 public:
  Decoder() {
    for (std::int64_t i = 0; i < kLayers; ++i)
      blocks_.push_back(register_module("block" + std::to_string(i), std::make_shared<DecoderBlock>()));
  }
  std::string class_name() const override { return "Decoder"; }

 protected:
  at::Tensor forward_impl(at::Tensor ids_BT) override {
    auto x_BTD = (*embedding_)(ids_BT);
    for (auto& block : blocks_) x_BTD = (*block)(x_BTD);
    return (*head_)((*norm_)(x_BTD));
  }

 private:
  std::shared_ptr<nn::Embedding> embedding_ =
      register_module("embedding", std::make_shared<nn::Embedding>(kVocabulary, kWidth));
  std::vector<std::shared_ptr<DecoderBlock>> blocks_;
  std::shared_ptr<nn::RmsNorm> norm_ = register_module("norm", std::make_shared<nn::RmsNorm>(kWidth, 1e-5));
  std::shared_ptr<nn::Linear> head_ = register_module("head", std::make_shared<nn::Linear>(kWidth, kVocabulary, false));
};

at::Tensor ids_of(const std::string& text) {
  return at::from_blob(const_cast<char*>(text.data()), {static_cast<std::int64_t>(text.size())}, at::kByte)
      .to(at::kLong);
}

at::Tensor read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (static_cast<std::int64_t>(text.size()) <= kContext)
    throw DataError("'" + path + "': expected a text of more than " + std::to_string(kContext) + " bytes, found " +
                        std::to_string(text.size()),
                    path);
  return ids_of(text);
}

/// This rank's rows of one step: inputs and what follows each of them, drawn from the rank's own random numbers.
at::Tensor loss_of_next_batch(Decoder& model, const at::Tensor& text) {
  const auto first_B1 = at::randint(text.size(0) - kContext, {kRowsPerRank, 1});
  const auto rows = text.index({first_B1 + at::arange(kContext + 1)});
  const auto inputs_BT = rows.narrow(1, 0, kContext), targets_BT = rows.narrow(1, 1, kContext);
  return at::cross_entropy_loss(model(inputs_BT).flatten(0, 1), targets_BT.flatten());
}

/// All ranks call it together, with the same random numbers: they gather the units for each other.
std::string sample(Decoder& model, const std::string& prompt, std::int64_t length) {
  const at::NoGradGuard no_grad;
  auto ids = ids_of(prompt);
  for (std::int64_t i = 0; i < length; ++i) {
    const auto seen =
        ids.narrow(0, std::max<std::int64_t>(0, ids.size(0) - kContext), std::min<std::int64_t>(ids.size(0), kContext));
    const auto logits_V = model(seen.unsqueeze(0))[0][-1];
    ids = at::cat({ids, at::multinomial((logits_V / 0.7).softmax(-1), 1)});
  }
  const auto bytes = ids.to(at::kByte).contiguous();
  return {reinterpret_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

void run(const std::string& text_file, const std::string& folder, std::int64_t steps) {
  const auto world = comm::connect();  // of `tessera launch`, torchrun or mpirun; alone: one rank
  const bool speaks = world->rank() == 0;
  const auto text = read_text(text_file);

  Decoder model;
  nn::reset_parameters(model, /*seed=*/1);  // the same values on every rank; fully_shard() keeps a slice of them
  auto sharded = fsdp::fully_shard(model, world, {.wrap = fsdp::wrap_classes({"DecoderBlock"})});
  optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), {.lr = 3e-3, .weight_decay = 0.1});

  manual_seed(2, static_cast<std::uint64_t>(world->rank()));  // each rank draws rows of its own
  const std::string state = folder + "/state";
  if (checkpoint::has_training_state(state)) {  // and where the random numbers were
    checkpoint::load_training_state(*sharded, &optimizer, state);
    if (speaks) std::printf("going on after step %ld\n", static_cast<long>(optimizer.steps()));
  }
  while (optimizer.steps() < steps) {
    optimizer.set_lr(3e-3 * optim::schedule("constant_with_warmup", optimizer.steps(), /*warmup_steps=*/20, 0));
    auto loss = loss_of_next_batch(model, text);
    loss.backward();
    sharded->clip_grad_norm(1.0, optimizer);
    optimizer.step();
    optimizer.zero_grad();
    if (speaks && optimizer.steps() % 10 == 0)
      std::printf("step %3ld  loss %.4f\n", static_cast<long>(optimizer.steps()), loss.item<double>());
    if (optimizer.steps() % kSaveEvery == 0 || optimizer.steps() == steps)
      checkpoint::save_training_state(*sharded, optimizer, state);
  }
  checkpoint::save_weights(*sharded, folder + "/model.safetensors");

  manual_seed(3);
  const auto said = sample(model, "Shall I compare ", 200);
  if (speaks) std::printf("%s\n", said.c_str());
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) return std::fprintf(stderr, "usage: language_model TEXT FOLDER [STEPS=120]\n"), 2;
  try {
    run(words[1], words[2], count > 3 ? std::atol(words[3]) : 120);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "error: %s\n", e.what()), 1;
  }
}
