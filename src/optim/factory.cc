#include "tessera/optim/factory.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "base/nearest.h"
#include "optim/adafactor.h"
#include "optim/any_precision.h"
#include "optim/bitsandbytes.h"
#include "optim/host_optimizer.h"
#include "optim/lora_fa.h"
#include "optim/low_rank.h"
#include "optim/optim_args.h"
#include "optim/rules.h"
#include "optim/schedule_free.h"
#include "optim/torchao.h"
#include "optim/whole_parameter.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

struct Inputs {
  std::string name;
  const OptimizerOptions& options;
  OptimArgs args;
  std::vector<at::Tensor> parameters;
  std::vector<ParameterSlice> slices;
  std::shared_ptr<comm::Communicator> group;
};
using Made = std::unique_ptr<Optimizer>;

/// After the options took their arguments.
template <class T, class Options>
Made build(Inputs& in, const Options& options) {
  in.args.check_all_taken();
  return std::make_unique<T>(std::move(in.parameters), std::move(in.slices), options);
}

/// The arguments that every kind of Adam has.
template <class Options>
void take_moments(Inputs& in, Options& o) {
  in.args.take("beta1", &o.beta1, kBelowOne);
  in.args.take("beta2", &o.beta2, kBelowOne);
  in.args.take("eps", &o.eps, kNotNegative);
}

/// The same over Trainer's own values.
template <class Options>
void take_trainers_moments(Inputs& in, Options& o) {
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  o.eps = in.options.adam_epsilon;
  take_moments(in, o);
}

template <class Options>
Options adam_options(Inputs& in) {
  Options o;
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  take_trainers_moments(in, o);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.take("amsgrad", &o.amsgrad);
  return o;
}

Made make_adamw(Inputs& in) {
  return build<AdamW>(in, adam_options<AdamWOptions>(in));
}
Made make_adam(Inputs& in) {
  return build<Adam>(in, adam_options<AdamOptions>(in));
}

Made make_sgd(Inputs& in) {
  SgdOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("momentum", &o.momentum, kNotNegative);
  in.args.take("dampening", &o.dampening, kAny);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.take("nesterov", &o.nesterov);
  return build<Sgd>(in, o);
}

/// LOMO is SGD; Trainer passes a rate alone, no decay.
Made make_lomo(Inputs& in) {
  SgdOptions o{.lr = in.options.lr};
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  return build<Sgd>(in, o);
}

Made make_lion(Inputs& in) {
  LionOptions o{in.options.lr, in.options.adam_beta1, in.options.adam_beta2, in.options.weight_decay};
  in.args.take("beta1", &o.beta1, kBelowOne);
  in.args.take("beta2", &o.beta2, kBelowOne);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  return build<Lion>(in, o);
}

Made make_rms_prop(Inputs& in) {
  RmsPropOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("alpha", &o.alpha, kNotNegative);
  in.args.take("eps", &o.eps, kNotNegative);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.take("momentum", &o.momentum, kNotNegative);
  in.args.take("centered", &o.centered);
  return build<RmsProp>(in, o);
}

Made make_adagrad(Inputs& in) {
  AdagradOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("lr_decay", &o.lr_decay, kNotNegative);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.take("initial_accumulator_value", &o.initial_accumulator_value, kNotNegative);
  in.args.take("eps", &o.eps, kNotNegative);
  return build<Adagrad>(in, o);
}

Made finish(Inputs& in, const AdafactorOptions& o) {
  in.args.check_all_taken();
  return std::make_unique<Adafactor>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

Made make_hf_adafactor(Inputs& in) {
  AdafactorOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("eps1", &o.eps1, kNotNegative);
  in.args.take("eps2", &o.eps2, kNotNegative);
  in.args.take("clip_threshold", &o.clip_threshold, kPositive);
  in.args.take("decay_rate", &o.decay_rate, kNotPositive);
  in.args.take("beta1", &o.beta1, kBelowOne);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.take("scale_parameter", &o.scale_parameter);
  in.args.take("relative_step", &o.relative_step);
  in.args.take("warmup_init", &o.warmup_init);
  if (o.warmup_init && !o.relative_step)
    throw ConfigError("optim_args: adafactor's warmup_init needs relative_step=true", "optim_args");
  return finish(in, o);
}

/// AdaLomo is Adafactor with rates relative to the parameters' size. Trainer passes a rate alone, no decay.
Made make_adalomo(Inputs& in) {
  AdafactorOptions o{.lr = in.options.lr, .scale_parameter = true};
  in.args.take("eps1", &o.eps1, kNotNegative);
  in.args.take("eps2", &o.eps2, kNotNegative);
  in.args.take("clip_threshold", &o.clip_threshold, kPositive);
  in.args.take("decay_rate", &o.decay_rate, kNotPositive);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  return finish(in, o);
}

Made make_torch_adafactor(Inputs& in) {
  AdafactorOptions o{
      .form = AdafactorOptions::Form::kTorch, .lr = in.options.lr, .eps1 = -1, .weight_decay = in.options.weight_decay};
  in.args.take("eps1", &o.eps1, kNotNegative);
  in.args.take("eps2", &o.eps2, kNotNegative);
  in.args.take("d", &o.clip_threshold, kAtLeastOne);
  in.args.take("beta2_decay", &o.decay_rate, kNotPositive);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  return finish(in, o);
}

bool has_eight_bits(const Inputs& in) {
  return in.name.find("8bit") != std::string::npos;
}

std::shared_ptr<const StateCodec> eight_bits_of(Inputs& in) {
  std::int64_t least = 4096;
  in.args.take("min_8bit_size", &least);
  return bnb_state_codec(least);
}

/// Of bitsandbytes, after the options took their own arguments.
template <class T, class Options>
Made build_bnb(Inputs& in, Options o) {
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  o.codec = has_eight_bits(in) ? eight_bits_of(in) : nullptr;
  in.args.check_all_taken();
  return std::make_unique<T>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

Made make_bnb_adam(Inputs& in) {
  BnbAdamOptions o;
  take_trainers_moments(in, o);
  return build_bnb<BnbAdam>(in, o);
}

/// Trainer gives it a rate, the moments' arguments and a decay.
Made make_torchao_adamw(Inputs& in) {
  TorchaoAdamWOptions o;
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  o.codec = torchao_state_codec(has_eight_bits(in) ? 8 : 4);
  take_trainers_moments(in, o);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.check_all_taken();
  return std::make_unique<TorchaoAdamW>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

Made make_bnb_lion(Inputs& in) {
  BnbLionOptions o;
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  in.args.take("beta1", &o.beta1, kBelowOne);
  in.args.take("beta2", &o.beta2, kBelowOne);
  return build_bnb<BnbLion>(in, o);
}

Made make_ad_ema_mix(Inputs& in) {
  AdEmaMixOptions o;
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  o.eps = in.options.adam_epsilon;
  in.args.take("beta1", &o.beta1, kBelowOne);
  in.args.take("beta2", &o.beta2, kBelowOne);
  in.args.take("beta3", &o.beta3, kBelowOne);
  in.args.take("alpha", &o.alpha, kNotNegative);
  in.args.take("eps", &o.eps, kNotNegative);
  in.args.take("t_alpha", &o.t_alpha, kNotNegative);
  in.args.take("t_beta3", &o.t_beta3, kNotNegative);
  return build_bnb<AdEmaMix>(in, o);
}

Made make_bnb_rms_prop(Inputs& in) {
  BnbRmsPropOptions o;
  in.args.take("alpha", &o.alpha, kNotNegative);
  in.args.take("eps", &o.eps, kNotNegative);
  return build_bnb<BnbRmsProp>(in, o);
}

/// create_lorafa_optimizer() passes a rate and a decay.
Made make_lora_fa(Inputs& in) {
  LoraFaOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  take_moments(in, o);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.check_all_taken();
  return std::make_unique<LoraFa>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

Made make_stable_adamw(Inputs& in) {
  StableAdamWOptions o;
  o.lr = in.options.lr;
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  o.eps = in.options.adam_epsilon;
  o.weight_decay = in.options.weight_decay;
  in.args.take("decouple_lr", &o.decouple_lr);
  in.args.take("max_lr", &o.max_lr, kPositive);
  in.args.check_all_taken();
  return std::make_unique<StableAdamW>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

// The betas and eps are the class's own: Trainer passes neither.
Made make_grok_adamw(Inputs& in) {
  GrokAdamWOptions o;
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  in.args.take("alpha_init", &o.alpha_init, kPart);
  in.args.take("lamb", &o.lamb, kNotNegative);
  in.args.take("gamma", &o.gamma, kPart);
  double signal_decay = 0.1;  // of a signal that Trainer never gives
  in.args.take("grokking_signal_decay_rate", &signal_decay, kNotNegative);
  in.args.take("gradient_clipping", &o.gradient_clipping, kNotNegative);
  in.args.check_all_taken();
  return std::make_unique<GrokAdamW>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

Made make_schedule_free(Inputs& in) {
  using Base = ScheduleFreeOptions::Base;
  ScheduleFreeOptions o;
  o.base = in.name == "schedule_free_sgd" ? Base::kSgd : in.name == "schedule_free_radam" ? Base::kRAdam : Base::kAdamW;
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  if (o.base == Base::kSgd) {
    in.args.take("momentum", &o.beta1, kAny);
  } else {
    take_trainers_moments(in, o);
  }
  if (o.base == Base::kRAdam) {
    in.args.take("silent_sgd_phase", &o.silent_sgd_phase);
  } else {
    o.warmup_steps = static_cast<double>(in.options.warmup_steps);
    in.args.take("warmup_steps", &o.warmup_steps, kNotNegative);
  }
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.take("r", &o.r, kAny);
  in.args.take("weight_lr_power", &o.weight_lr_power, kAny);
  return build<ScheduleFree>(in, o);
}

Made make_any_precision(Inputs& in) {
  AnyPrecisionOptions o;
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  take_trainers_moments(in, o);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  in.args.take("use_kahan_summation", &o.use_kahan_summation);
  const auto take_dtype = [&](const char* key, at::ScalarType& dtype) {
    std::string name;
    in.args.take(key, &name, {"float32", "bfloat16", "float16"});
    if (!name.empty()) dtype = name == "float32" ? at::kFloat : name == "bfloat16" ? at::kBFloat16 : at::kHalf;
  };
  take_dtype("momentum_dtype", o.momentum_dtype);
  take_dtype("variance_dtype", o.variance_dtype);
  take_dtype("compensation_buffer_dtype", o.compensation_buffer_dtype);
  return build<AnyPrecisionAdamW>(in, o);
}

/// A maker of optimizers of one class and these options.
template <class T, class Options>
MakeOptimizer maker(const Options& options) {
  return [options](std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                   std::shared_ptr<comm::Communicator> group) -> Made {
    if constexpr (std::is_constructible_v<T, std::vector<at::Tensor>, std::vector<ParameterSlice>, Options,
                                          std::shared_ptr<comm::Communicator>>)
      return std::make_unique<T>(std::move(parameters), std::move(slices), options, std::move(group));
    else
      return std::make_unique<T>(std::move(parameters), std::move(slices), options);
  };
}

/// What Trainer gives GaLore and APOLLO alike, taken from the arguments: its own decay is not among it.
LowRankOptions low_rank_options(Inputs& in, double scale) {
  LowRankOptions o;
  o.lr = in.options.lr;
  o.scale = scale;
  o.same_seed = in.name.ends_with("_layerwise");
  in.args.take("rank", &o.projection.rank);
  in.args.take("update_proj_gap", &o.projection.update_proj_gap);
  in.args.take("scale", &o.scale, kNotNegative);
  in.args.take("weight_decay", &o.weight_decay, kNotNegative);
  if (o.projection.rank < 1 || o.projection.update_proj_gap < 1)
    throw ConfigError("optim_args of '" + in.name + "': rank and update_proj_gap must be at least 1", "optim_args");
  return o;
}

Made build_low_rank(Inputs& in, const LowRankOptions& o, const MakeOptimizer& rest, const MakeOptimizer& low) {
  in.args.check_all_taken();
  return std::make_unique<LowRankOptimizer>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group),
                                            rest, low);
}

// The betas and eps are the classes' own: Trainer passes none.
Made make_galore(Inputs& in) {
  auto o = low_rank_options(in, 0.25);
  in.args.take("proj_type", &o.projection.proj_type, {"std", "reverse_std", "left", "right", "full"});
  const bool adafactor = in.name.find("adafactor") != std::string::npos;
  if (adafactor) {
    o.decays_first = true;
    AdafactorOptions rest{.lr = o.lr, .weight_decay = o.weight_decay}, low;
    return build_low_rank(in, o, maker<Adafactor>(rest), maker<Adafactor>(low));
  }
  if (!has_eight_bits(in)) {
    AdamWOptions rest{.lr = o.lr, .eps = 1e-6, .weight_decay = o.weight_decay};
    take_moments(in, rest);
    auto low = rest;
    low.weight_decay = 0;
    return build_low_rank(in, o, maker<HfAdamW>(rest), maker<HfAdamW>(low));
  }
  BnbAdamOptions rest;
  rest.lr = o.lr;
  rest.weight_decay = o.weight_decay;
  take_moments(in, rest);
  rest.codec = eight_bits_of(in);
  auto low = rest;
  low.weight_decay = 0;
  return build_low_rank(in, o, maker<BnbAdam>(rest), maker<BnbAdam>(low));
}

// What is not projected has the class's own betas and eps: Trainer passes its own to the other group alone.
Made make_apollo(Inputs& in) {
  auto o = low_rank_options(in, 1.0);
  std::string proj = "random", scale_type = "channel";
  in.args.take("proj", &proj, {"random", "svd"});
  in.args.take("scale_type", &scale_type, {"channel", "tensor"});
  in.args.take("proj_type", &o.projection.proj_type, {"std"});
  o.projection.random = proj == "random";
  using Form = LowRankOptions::Form;
  o.form = scale_type == "channel" ? Form::kApolloChannel : Form::kApolloTensor;
  const AdamWOptions rest{.lr = o.lr, .eps = 1e-6, .weight_decay = o.weight_decay};
  AdamWOptions low{.beta1 = in.options.adam_beta1, .beta2 = in.options.adam_beta2, .eps = in.options.adam_epsilon};
  take_moments(in, low);
  low.weight_decay = 0;
  o.beta1 = low.beta1;
  o.beta2 = low.beta2;
  return build_low_rank(in, o, maker<HfAdamW>(rest), maker<HfAdamW>(low));
}

const std::vector<std::pair<std::string, std::function<Made(Inputs&)>>>& makers() {
  static const std::vector<std::pair<std::string, std::function<Made(Inputs&)>>> table = {
      {"adamw_torch", make_adamw},
      {"adamw_torch_fused", make_adamw},
      {"adamw_hf", make_adamw},
      {"adamw_apex_fused", make_adamw},
      {"paged_adamw_32bit", make_adamw},
      {"adam", make_adam},
      {"sgd", make_sgd},
      {"adafactor", make_hf_adafactor},
      {"torch_adafactor", make_torch_adafactor},
      {"lion_32bit", make_lion},
      {"paged_lion_32bit", make_lion},
      {"rmsprop", make_rms_prop},
      {"adagrad", make_adagrad},
      {"adamw_bnb_8bit", make_bnb_adam},
      {"adamw_8bit", make_bnb_adam},
      {"paged_adamw_8bit", make_bnb_adam},
      {"adamw_torch_4bit", make_torchao_adamw},
      {"adamw_torch_8bit", make_torchao_adamw},
      {"lion_8bit", make_bnb_lion},
      {"paged_lion_8bit", make_bnb_lion},
      {"ademamix", make_ad_ema_mix},
      {"ademamix_8bit", make_ad_ema_mix},
      {"paged_ademamix_32bit", make_ad_ema_mix},
      {"paged_ademamix_8bit", make_ad_ema_mix},
      {"rmsprop_bnb", make_bnb_rms_prop},
      {"rmsprop_bnb_8bit", make_bnb_rms_prop},
      {"rmsprop_bnb_32bit", make_bnb_rms_prop},
      {"stable_adamw", make_stable_adamw},
      {"lorafa", make_lora_fa},
      {"grokadamw", make_grok_adamw},
      {"schedule_free_adamw", make_schedule_free},
      {"schedule_free_radam", make_schedule_free},
      {"schedule_free_sgd", make_schedule_free},
      {"adamw_anyprecision", make_any_precision},
      {"lomo", make_lomo},
      {"adalomo", make_adalomo},
      {"galore_adamw", make_galore},
      {"galore_adamw_layerwise", make_galore},
      {"galore_adamw_8bit", make_galore},
      {"galore_adamw_8bit_layerwise", make_galore},
      {"galore_adafactor", make_galore},
      {"galore_adafactor_layerwise", make_galore},
      {"apollo_adamw", make_apollo},
      {"apollo_adamw_layerwise", make_apollo},
  };
  return table;
}

/// Names that Trainer knows and nothing here builds, and why.
const std::vector<std::pair<std::string, std::string>>& missing() {
  const char* kDevice = "belongs to another device than the CPU";
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"adamw_torch_xla", kDevice},
      {"adamw_torch_npu_fused", kDevice},
  };
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& n : names) text += (text.empty() ? "" : ", ") + n;
  return text;
}

[[noreturn]] void refuse(const std::string& name) {
  const auto known = optimizer_names();
  for (const auto& [missing_name, reason] : missing())
    if (name == missing_name)
      throw ConfigError("optim: '" + name + "' " + reason + "; use one of " + joined(known), "optim");
  throw ConfigError(
      "optim: unknown optimizer '" + name + "'" + did_you_mean(name, known) + "; known are " + joined(known), "optim");
}

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : makers()) names.push_back(name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const OptimizerOptions& options,
                                          std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                                          std::shared_ptr<comm::Communicator> group) {
  for (const auto& [known, make] : makers()) {
    if (known != name) continue;
    const HostOptimizer::Make build = [&](std::vector<at::Tensor> of) {
      Inputs in{name, options, OptimArgs(options.optim_args, name), std::move(of), slices, group};
      return make(in);
    };
    auto made = build(parameters);
    const bool here = std::all_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.is_cpu(); });
    if (here || made->runs_anywhere()) return made;
    return std::make_unique<HostOptimizer>(parameters, slices, build);
  }
  refuse(name);
}

}  // namespace tessera::optim
