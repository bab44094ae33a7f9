// What each fused operation gains over the same mathematics written with libtorch's own operators, as transformers and
// peft write it: forward and backward of one layer's worth of tokens, in float32 and bfloat16.
//
//   cmake --preset release -DTESSERA_BENCH=ON && ninja -C build/release kernel_bench
//   OMP_NUM_THREADS=1 build/release/bench/kernel_bench [PART OF A NAME]
//
// Prints a Markdown table: medians in milliseconds, the two taking turns, and the largest difference of their results,
// relative to the result's largest element.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/grads/grad_norm.h"
#include "nn/layers/activation.h"
#include "nn/ops/attention.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/gemm.h"
#include "nn/ops/layer_norm.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/lookup.h"
#include "nn/ops/lora_linear.h"
#include "nn/ops/rms_norm.h"
#include "nn/ops/rotary.h"
#include "tensor/rng.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/allocator.h"

namespace tessera::bench {
namespace {

// A Llama of 120 million parameters, two rows of 256 tokens.
constexpr std::int64_t kRows = 2, kLength = 256, kTokens = kRows * kLength, kDim = 768, kInner = 2048, kHeads = 12,
                       kKeyHeads = 4, kHeadDim = kDim / kHeads, kVocabulary = 32000, kRank = 8;
constexpr double kEps = 1e-6, kDropout = 0.1;

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Tensors&)>;

struct Kernel {
  std::string name;
  Tensors inputs;  // float32; those that require grad get one
  Operation fused, composite;
  bool same_numbers = true;  // false where each draws its own mask
};

at::Tensor trained(at::IntArrayRef shape, double scale = 1.0) {
  return (at::randn(shape) * scale).set_requires_grad(true);
}
at::Tensor frozen(at::IntArrayRef shape, double scale = 1.0) {
  return at::randn(shape) * scale;
}

Tensors in_dtype(const Tensors& inputs, at::ScalarType dtype) {
  Tensors result;
  for (const auto& t : inputs)
    result.push_back(t.is_floating_point() ? t.detach().to(dtype).set_requires_grad(t.requires_grad()) : t);
  return result;
}

/// The result and the gradients of all inputs that take one.
Tensors run(const Operation& operation, const Tensors& inputs, const at::Tensor& gradient) {
  const auto y = operation(inputs);
  if (!y.requires_grad()) return {y};
  Tensors wanted;
  for (const auto& t : inputs)
    if (t.requires_grad()) wanted.push_back(t);
  auto result = torch::autograd::grad({y}, wanted, {gradient});
  result.insert(result.begin(), y.detach());
  return result;
}

double milliseconds(const std::function<void()>& pass) {
  const auto begin = std::chrono::steady_clock::now();
  pass();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double difference(const Tensors& a, const Tensors& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = a[i].to(at::kDouble), y = b[i].to(at::kDouble).view(x.sizes());
    most = std::max(most, ((x - y).abs().max() / y.abs().max().clamp_min(1e-30)).item<double>());
  }
  return most;
}

void report(const Kernel& kernel, at::ScalarType dtype) {
  const auto inputs = in_dtype(kernel.inputs, dtype);
  const auto y = kernel.composite(inputs);
  const auto gradient = at::randn_like(y.detach());
  const auto apart = kernel.same_numbers ? fmt::format("{:.1e}", difference(run(kernel.fused, inputs, gradient),
                                                                            run(kernel.composite, inputs, gradient)))
                                         : std::string("own masks");
  std::vector<double> fused, composite;
  double spent = 0;
  while (fused.size() < 7 || (spent < 1000 && fused.size() < 200)) {
    fused.push_back(milliseconds([&] { run(kernel.fused, inputs, gradient); }));
    composite.push_back(milliseconds([&] { run(kernel.composite, inputs, gradient); }));
    spent += fused.back() + composite.back();
  }
  fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.1f} | {} |\n", kernel.name, dtype == at::kFloat ? "fp32" : "bf16",
             median(fused), median(composite), median(composite) / median(fused), apart);
  std::fflush(stdout);
}

at::Tensor norm_of_transformers(const Tensors& i) {
  const auto x = i[0].to(at::kFloat);
  return i[1] * (x * at::rsqrt(x.pow(2).mean(-1, true) + kEps)).to(i[0].scalar_type());
}

at::Tensor rotate_half(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

nn::RotaryTable rotary_table() {
  const auto angles = at::outer(at::arange(kLength, at::kFloat),
                                at::pow(10000.0, at::arange(0, kHeadDim, 2, at::kFloat) / -double(kHeadDim)));
  return {angles.cos(), angles.sin(), at::arange(kLength, at::kLong).repeat(kRows)};
}

Kernel rotary() {
  const auto table = rotary_table();
  const auto cos = at::cat({table.cos, table.cos}, 1).index_select(0, table.positions).unsqueeze(1);
  const auto sin = at::cat({table.sin, table.sin}, 1).index_select(0, table.positions).unsqueeze(1);
  return {"rotary embedding of q and k",
          {trained({kTokens, kHeads, kHeadDim}), trained({kTokens, kHeads, kHeadDim})},
          [table](const Tensors& i) {
            const auto [q, k] = nn::rotary(i[0], i[1], table);
            return at::cat({q, k}, 1);
          },
          [cos, sin](const Tensors& i) {
            const auto c = cos.to(i[0].scalar_type()), s = sin.to(i[0].scalar_type());
            return at::cat({i[0] * c + rotate_half(i[0]) * s, i[1] * c + rotate_half(i[1]) * s}, 1);
          }};
}

std::shared_ptr<const nn::SequenceRows> rows(std::int64_t count = kRows, std::int64_t length = kLength) {
  return std::make_shared<nn::SequenceRows>(nn::SequenceRows::uniform(count, length, length));
}

at::Tensor heads(const at::Tensor& x, std::int64_t length = kLength) {  // [tokens, dim] -> [rows, H, length, head dim]
  return x.view({-1, length, kHeads, kHeadDim}).transpose(1, 2);
}
at::Tensor joined(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({-1, kDim});
}

Kernel causal_attention(std::int64_t count, std::int64_t length) {
  nn::AttentionOptions options;
  options.causal = true;
  options.scale = 1.0 / std::sqrt(double(kHeadDim));
  options.query_rows = options.key_rows = rows(count, length);
  const auto tokens = count * length;
  constexpr auto kGroup = kHeads / kKeyHeads;
  const auto keys = [&] { return trained({tokens, kKeyHeads, kHeadDim}); };
  return {fmt::format("causal attention, {} x {} tokens (beside scaled_dot_product_attention)", count, length),
          {trained({tokens, kDim}), keys(), keys()},
          [options, tokens](const Tensors& i) {
            return nn::attention(i[0].view({tokens, kKeyHeads, kGroup, kHeadDim}), i[1], i[2], options);
          },
          [length](const Tensors& i) {
            const auto repeated = [&](const at::Tensor& t) {
              return t.view({-1, length, kKeyHeads, kHeadDim}).transpose(1, 2).repeat_interleave(kGroup, 1);
            };
            return joined(
                at::scaled_dot_product_attention(heads(i[0], length), repeated(i[1]), repeated(i[2]), {}, 0.0, true));
          }};
}

Kernel biased_attention() {
  const auto places = at::arange(kLength, at::kLong);
  const auto distances = (places.unsqueeze(0) - places.unsqueeze(1) + (kLength - 1)).flatten();
  const auto pairs = [distances](const at::Tensor& bias) {
    return bias.index_select(1, distances).view({kHeads, kLength, kLength});
  };
  nn::AttentionOptions options;
  options.query_rows = options.key_rows = rows();
  return {"attention with a trained bias (T5)",
          {trained({kTokens, kDim}, 0.1), trained({kTokens, kDim}, 0.1), trained({kTokens, kDim}),
           trained({kHeads, 2 * kLength - 1})},
          [options](const Tensors& i) {
            return nn::attention(nn::query_heads(i[0], kHeads), nn::key_heads(i[1], kHeads),
                                 nn::key_heads(i[2], kHeads), options, {.bias = i[3]});
          },
          [pairs](const Tensors& i) {
            const auto scores = at::matmul(heads(i[0]), heads(i[1]).transpose(-1, -2)) + pairs(i[3]);
            return joined(at::matmul(at::softmax(scores.to(at::kFloat), -1).to(scores.scalar_type()), heads(i[2])));
          }};
}

Kernel cross_entropy() {
  const auto labels = at::randint(kVocabulary, {kTokens}, at::kLong);
  return {"output head with cross entropy, both trained",
          {trained({kTokens, kDim}), trained({kVocabulary, kDim}, 0.02)},
          [labels](const Tensors& i) {
            nn::CrossEntropyOptions options;
            options.normalizer = kTokens;
            options.loss_dtype = at::kFloat;
            return nn::linear_cross_entropy(i[0], i[1], labels, options);
          },
          [labels](const Tensors& i) { return at::cross_entropy_loss(at::linear(i[0], i[1]).to(at::kFloat), labels); }};
}

Kernel lora(double dropout) {
  return {dropout > 0 ? "linear with LoRA, dropout 0.1" : "linear with LoRA",
          {trained({kTokens, kDim}), frozen({kInner, kDim}, 0.02), trained({kRank, kDim}, 0.02),
           trained({kInner, kRank}, 0.02)},
          [dropout](const Tensors& i) { return nn::lora_linear(i[0], i[1], {}, {i[2], i[3], 2.0, dropout}); },
          [dropout](const Tensors& i) {
            const auto x = dropout > 0 ? at::dropout(i[0], dropout, true) : i[0];
            return at::linear(i[0], i[1]) + at::linear(at::linear(x, i[2]), i[3]) * 2.0;
          },
          dropout == 0};
}

/// As a model reads its weights: none is in a cache when its turn comes.
Kernel frozen_layers() {
  constexpr int kLayers = 12;
  const auto through = [](const Tensors& i, const auto& linear) {
    auto y = i[0];
    for (int layer = 1; layer <= kLayers; ++layer) y = linear(y, i[layer]);
    return y;
  };
  Tensors inputs{trained({kTokens, kDim})};
  for (int layer = 0; layer < kLayers; ++layer) inputs.push_back(frozen({kDim, kDim}, 1 / std::sqrt(1.0 * kDim)));
  return {fmt::format("{} frozen linear layers one after the other", kLayers), inputs,
          [through](const Tensors& i) {
            return through(i, [](const at::Tensor& x, const at::Tensor& w) { return nn::affine(x, w, {}); });
          },
          [through](const Tensors& i) {
            return through(i, [](const at::Tensor& x, const at::Tensor& w) { return at::linear(x, w); });
          }};
}

std::vector<Kernel> kernels() {
  const auto ids = at::randint(kVocabulary, {kTokens}, at::kLong);
  const auto trained_gate = [] { return Tensors{trained({kTokens, kInner}), trained({kTokens, kInner})}; };
  return {
      {"RMSNorm",
       {trained({kTokens, kDim}), trained({kDim})},
       [](const Tensors& i) { return nn::rms_norm(i[0], i[1], kEps); },
       norm_of_transformers},
      {"LayerNorm",
       {trained({kTokens, kDim}), trained({kDim}), trained({kDim})},
       [](const Tensors& i) { return nn::layer_norm(i[0], i[1], i[2], kEps); },
       [](const Tensors& i) { return at::layer_norm(i[0], {kDim}, i[1], i[2], kEps); }},
      rotary(),
      {"SwiGLU", trained_gate(), [](const Tensors& i) { return nn::gated(i[0], i[1], Activation::kSilu); },
       [](const Tensors& i) { return at::silu(i[0]) * i[1]; }},
      {"GeGLU (tanh)", trained_gate(), [](const Tensors& i) { return nn::gated(i[0], i[1], Activation::kGeluTanh); },
       [](const Tensors& i) { return at::gelu(i[0], "tanh") * i[1]; }},
      {"GELU",
       {trained({kTokens, kInner})},
       [](const Tensors& i) { return nn::activate(i[0], Activation::kGelu); },
       [](const Tensors& i) { return at::gelu(i[0]); }},
      {"GELU (tanh)",
       {trained({kTokens, kInner})},
       [](const Tensors& i) { return nn::activate(i[0], Activation::kGeluTanh); },
       [](const Tensors& i) { return at::gelu(i[0], "tanh"); }},
      {"ReLU and dropout",
       {trained({kTokens, kInner})},
       [](const Tensors& i) { return nn::relu_dropout(i[0], kDropout); },
       [](const Tensors& i) { return at::dropout(at::relu(i[0]), kDropout, true); },
       false},
      {"residual plus dropout",
       {trained({kTokens, kDim}), trained({kTokens, kDim})},
       [](const Tensors& i) { return nn::dropout_add(i[0], i[1], kDropout); },
       [](const Tensors& i) { return i[0] + at::dropout(i[1], kDropout, true); },
       false},
      causal_attention(kRows, kLength),
      causal_attention(1, 1024),
      causal_attention(1, 2048),
      biased_attention(),
      {"linear, all trained",
       {trained({kTokens, kDim}), trained({kInner, kDim}, 0.02)},
       [](const Tensors& i) { return nn::affine(i[0], i[1], {}); },
       [](const Tensors& i) { return at::linear(i[0], i[1]); }},
      {"linear with bias, all trained",
       {trained({kTokens, kDim}), trained({kInner, kDim}, 0.02), trained({kInner})},
       [](const Tensors& i) { return nn::affine(i[0], i[1], i[2]); },
       [](const Tensors& i) { return at::linear(i[0], i[1], i[2]); }},
      {"Conv1D (GPT-2), all trained",
       {trained({kTokens, kDim}), trained({kDim, kInner}, 0.02), trained({kInner})},
       [](const Tensors& i) { return nn::affine(i[0], i[1].t(), i[2]); },
       [](const Tensors& i) { return at::addmm(i[2], i[0], i[1]); }},
      frozen_layers(),
      lora(0),
      lora(kDropout),
      {"embedding, trained",
       {trained({kVocabulary, kDim})},
       [ids](const Tensors& i) { return nn::lookup(i[0], ids); },
       [ids](const Tensors& i) { return at::embedding(i[0], ids); }},
      cross_entropy(),
  };
}

/// torch.optim.AdamW as it is by default on a CPU, an operator at a time, and its fused form.
struct LibtorchAdamW {
  const at::Tensor parameter, gradient, m = at::zeros_like(gradient), v = at::zeros_like(gradient),
                                        steps = at::zeros({});
  static constexpr double kRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kDecay = 0.01, kSmall = 1e-8;

  void step_fused() {
    steps.add_(1);
    at::_fused_adamw_({parameter}, {gradient}, {m}, {v}, {}, {steps}, kRate, kBeta1, kBeta2, kDecay, kSmall, false,
                      false);
  }
  void step_by_operators() {
    const double t = steps.add_(1).item<double>();
    parameter.mul_(1 - kRate * kDecay);
    m.lerp_(gradient, 1 - kBeta1);
    v.mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
    const auto denominator = (v.sqrt() / std::sqrt(1 - std::pow(kBeta2, t))).add_(kSmall);
    parameter.addcdiv_(m, denominator, -kRate / (1 - std::pow(kBeta1, t)));
  }
  /// torch.nn.utils.clip_grad_norm_.
  void clip(double max_norm) {
    gradient.mul_(at::clamp_max(max_norm / (at::linalg_vector_norm(gradient) + 1e-6), 1.0));
  }
};

/// One step over ten million elements.
void report_adamw(const char* name, bool clipped, bool by_operators, comm::Communicator& group) {
  constexpr std::int64_t kNumel = 10 << 20;
  constexpr double kMaxNorm = 1.0;
  const auto start = at::randn({kNumel}), gradient = at::randn({kNumel});
  const auto mine = start.clone().set_requires_grad(true);
  mine.mutable_grad() = gradient;
  optim::AdamW optimizer({mine}, optim::AdamWOptions{.lr = 1e-3});
  LibtorchAdamW theirs{start.clone(), gradient.clone()};
  std::vector<double> fused, composite;
  for (int i = 0; i < 15; ++i) {
    fused.push_back(milliseconds([&] {
      if (clipped) {
        const double norm = fsdp::global_norm({gradient}, 2.0, group);
        optimizer.scale_next_gradients(fsdp::clip_factor(norm, kMaxNorm));
      }
      optimizer.step();
    }));
    composite.push_back(milliseconds([&] {
      if (clipped) theirs.clip(kMaxNorm);
      by_operators ? theirs.step_by_operators() : theirs.step_fused();
    }));
  }
  fmt::print("| {}, {} M elements | fp32 | {:.2f} | {:.2f} | {:.1f} | {:.1e} |\n", name, kNumel >> 20, median(fused),
             median(composite), median(composite) / median(fused), difference({mine.detach()}, {theirs.parameter}));
}

void run_all(const std::string& wanted) {
  tensor::use_step_allocator();
  tensor::manual_seed(1);
  fmt::print(
      "| operation | dtype | fused ms | libtorch's operators ms | times as fast | apart "
      "|\n|---|---|---|---|---|---|\n");
  for (const auto& kernel : kernels()) {
    if (kernel.name.find(wanted) == std::string::npos) continue;
    for (const auto dtype : {at::kFloat, at::kBFloat16}) report(kernel, dtype);
  }
  if (std::string("clipping and AdamW").find(wanted) == std::string::npos) return;
  comm::run_threads(1, [](const std::shared_ptr<comm::Communicator>& group) {
    report_adamw("AdamW", false, true, *group);
    report_adamw("clipping and AdamW", true, true, *group);
    report_adamw("AdamW (beside libtorch's fused one)", false, false, *group);
    report_adamw("clipping and AdamW (beside libtorch's fused one)", true, false, *group);
  });
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  try {
    tessera::bench::run_all(argc > 1 ? argv[1] : "");
  } catch (const std::exception& e) {
    fmt::print(stderr, "kernel_bench: {}\n", e.what());
    return 1;
  }
}
