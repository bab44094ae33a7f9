#pragma once
// One step of a rule that treats every element alone: which rule, and its scalars. A FlatOptimizer gives one for each
// step.
#include <array>
#include <cstdint>
#include <functional>

namespace tessera::optim {

/// kCustom: what Update::custom says.
enum class Rule {
  kAdam,
  kSgd,
  kLion,
  kRmsProp,
  kAdagrad,
  kBnbAdam,      // this and the next two round as bitsandbytes' operations do
  kAdEmaMix,     // Pagliardini et al. 2024
  kBnbRmsProp,   // neither centred nor with momentum
  kTorchaoAdam,  // rounds as torchao's operations do
  kGrokAdam,     // Adam of the gradient and its slow average
  kScheduleFree,
  kKeep,      // the state becomes the parameter
  kAverage,   // the third state becomes the parameter, the parameter a mixture with the first state
  kTakeBack,  // the parameter becomes the third state
  kCustom,    // what Update::custom says
};

constexpr int kMaxStates = 3;
/// State tensors, in the order that the rule names them; null where the options need none.
template <class T>
using States = std::array<T*, kMaxStates>;

/// A rule of one's own: updates parameters p and states in place by the gradients g, n elements of each, float32. Runs
/// on several threads at once, over ranges of any size, so an element's result must not depend on the others. 16-bit
/// parameters and states come as float32; clipping's factor is in g already. ConfigError for float64 parameters.
using CustomRule = std::function<void(std::int64_t n, float* p, const float* g, States<float> states)>;

/// The scalars of one step, derived once from the options and the step counter. A rule uses what it names.
struct UpdateScalars {
  Rule rule = Rule::kAdam;
  double gradient_factor = 1;   // on the gradient, before all else
  double lr = 0;                // all but kAdam
  double decay = 1;             // factor on the parameter: decoupled weight decay (kAdam, kLion, kBnbAdam, kAdEmaMix);
                                // kTorchaoAdam: the part of it that is taken away
  double l2 = 0;                // weight decay that is added to the gradient (not kLion)
  double beta1 = 0, beta2 = 0;  // kAdam, kLion, kBnbAdam, kAdEmaMix, kTorchaoAdam
  double beta3 = 0;             // kAdEmaMix, kGrokAdam: of the slow average
  double eps = 0;               // not kSgd, kLion
  double step_size = 0;         // kAdam, kBnbAdam: lr / (1 - beta1^t); kGrokAdam: that of both corrections;
                                // kScheduleFree: the parameter's rate (lr: the first state's)
  double correction1 = 1;       // kAdEmaMix, kTorchaoAdam: 1 - beta1^t
  double correction2 = 1;       // kBnbAdam, kAdEmaMix, kTorchaoAdam: sqrt(1 - beta2^t); kScheduleFree: 1 - beta2^t
  double inv_sqrt_correction2 = 0;  // kAdam: 1 / sqrt(1 - beta2^t)
  double momentum = 0;              // kSgd, kRmsProp
  double mix = 0;                   // kScheduleFree, kAverage: of the first state, in the parameter
  bool adaptive = false;            // kScheduleFree: the gradient is divided by the root of its second moment
  double dampening = 0;             // kSgd: 0 in the first step
  double alpha = 0;                 // kRmsProp, kBnbRmsProp; kAdEmaMix, kGrokAdam: weight of the slow average
  bool nesterov = false;            // kSgd
  bool operator==(const UpdateScalars&) const = default;
};
struct Update : UpdateScalars {
  CustomRule custom = nullptr;  // kCustom
};
// States: kAdam exp_avg, exp_avg_sq [, max_exp_avg_sq]; kSgd [momentum_buffer]; kLion exp_avg;
// kRmsProp square_avg, [grad_avg], [momentum_buffer]; kAdagrad sum; kBnbAdam, kTorchaoAdam first, second moment;
// kAdEmaMix fast, slow average, second moment; kBnbRmsProp second moment; kGrokAdam first, second moment, slow average;
// kScheduleFree z, [second moment], and the three after it z, [second moment], [what is trained].

/// Vectorised for the processor it runs on; the result of an element doesn't depend on where the range begins.
void update_range(const Update& update, std::int64_t n, float* p, const float* g, States<float> s);
void update_range(const Update& update, std::int64_t n, double* p, const double* g, States<double> s);

/// Through fp32, a block at a time, for 16-bit parameters.
template <class T>
void update_range(const Update& update, std::int64_t n, T* p, const T* g, States<T> s) {
  constexpr std::int64_t kBlock = 256;
  float fp[kBlock], fg[kBlock], fs[kMaxStates][kBlock];
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const auto count = n - at < kBlock ? n - at : kBlock;
    States<float> block{};
    for (int k = 0; k < kMaxStates; ++k) {
      if (!s[k]) continue;
      block[k] = fs[k];
      for (std::int64_t i = 0; i < count; ++i) fs[k][i] = static_cast<float>(s[k][at + i]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      fp[i] = static_cast<float>(p[at + i]);
      fg[i] = static_cast<float>(g[at + i]);
    }
    update_range(update, count, fp, fg, block);
    for (std::int64_t i = 0; i < count; ++i) p[at + i] = static_cast<T>(fp[i]);
    for (int k = 0; k < kMaxStates; ++k)
      if (s[k])
        for (std::int64_t i = 0; i < count; ++i) s[k][at + i] = static_cast<T>(fs[k][i]);
  }
}

}  // namespace tessera::optim
