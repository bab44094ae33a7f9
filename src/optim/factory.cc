#include "tessera/optim/factory.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <utility>

#include "base/nearest.h"
#include "optim/adafactor.h"
#include "optim/bitsandbytes.h"
#include "optim/lora_fa.h"
#include "optim/optim_args.h"
#include "optim/rules.h"
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

template <class Options>
Options adam_options(Inputs& in) {
  Options o;
  o.lr = in.options.lr;
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  o.eps = in.options.adam_epsilon;
  o.weight_decay = in.options.weight_decay;
  in.args.take("beta1", &o.beta1);
  in.args.take("beta2", &o.beta2);
  in.args.take("eps", &o.eps);
  in.args.take("weight_decay", &o.weight_decay);
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
  in.args.take("momentum", &o.momentum);
  in.args.take("dampening", &o.dampening);
  in.args.take("weight_decay", &o.weight_decay);
  in.args.take("nesterov", &o.nesterov);
  return build<Sgd>(in, o);
}

Made make_lion(Inputs& in) {
  LionOptions o{in.options.lr, in.options.adam_beta1, in.options.adam_beta2, in.options.weight_decay};
  in.args.take("beta1", &o.beta1);
  in.args.take("beta2", &o.beta2);
  in.args.take("weight_decay", &o.weight_decay);
  return build<Lion>(in, o);
}

Made make_rms_prop(Inputs& in) {
  RmsPropOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("alpha", &o.alpha);
  in.args.take("eps", &o.eps);
  in.args.take("weight_decay", &o.weight_decay);
  in.args.take("momentum", &o.momentum);
  in.args.take("centered", &o.centered);
  return build<RmsProp>(in, o);
}

Made make_adagrad(Inputs& in) {
  AdagradOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("lr_decay", &o.lr_decay);
  in.args.take("weight_decay", &o.weight_decay);
  in.args.take("initial_accumulator_value", &o.initial_accumulator_value);
  in.args.take("eps", &o.eps);
  return build<Adagrad>(in, o);
}

Made finish(Inputs& in, const AdafactorOptions& o) {
  in.args.check_all_taken();
  return std::make_unique<Adafactor>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

Made make_hf_adafactor(Inputs& in) {
  AdafactorOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("eps1", &o.eps1);
  in.args.take("eps2", &o.eps2);
  in.args.take("clip_threshold", &o.clip_threshold);
  in.args.take("decay_rate", &o.decay_rate);
  in.args.take("beta1", &o.beta1);
  in.args.take("weight_decay", &o.weight_decay);
  in.args.take("scale_parameter", &o.scale_parameter);
  in.args.take("relative_step", &o.relative_step);
  in.args.take("warmup_init", &o.warmup_init);
  if (o.warmup_init && !o.relative_step)
    throw ConfigError("optim_args: adafactor's warmup_init needs relative_step=true", "optim_args");
  return finish(in, o);
}

Made make_torch_adafactor(Inputs& in) {
  AdafactorOptions o{
      .form = AdafactorOptions::Form::kTorch, .lr = in.options.lr, .eps1 = -1, .weight_decay = in.options.weight_decay};
  in.args.take("eps1", &o.eps1);
  in.args.take("eps2", &o.eps2);
  in.args.take("d", &o.clip_threshold);
  in.args.take("beta2_decay", &o.decay_rate);
  in.args.take("weight_decay", &o.weight_decay);
  return finish(in, o);
}

bool has_eight_bits(const Inputs& in) {
  return in.name.find("8bit") != std::string::npos;
}

/// Of bitsandbytes, after the options took their own arguments.
template <class T, class Options>
Made build_bnb(Inputs& in, Options o) {
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  in.args.take("weight_decay", &o.weight_decay);
  o.bits = has_eight_bits(in) ? 8 : 32;
  auto least = static_cast<double>(o.min_8bit_size);
  if (o.bits == 8) in.args.take("min_8bit_size", &least);
  o.min_8bit_size = static_cast<std::int64_t>(least);
  in.args.check_all_taken();
  return std::make_unique<T>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

Made make_bnb_adam(Inputs& in) {
  BnbAdamOptions o;
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  o.eps = in.options.adam_epsilon;
  in.args.take("beta1", &o.beta1);
  in.args.take("beta2", &o.beta2);
  in.args.take("eps", &o.eps);
  return build_bnb<BnbAdam>(in, o);
}

Made make_bnb_lion(Inputs& in) {
  BnbLionOptions o;
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  in.args.take("beta1", &o.beta1);
  in.args.take("beta2", &o.beta2);
  return build_bnb<BnbLion>(in, o);
}

Made make_ad_ema_mix(Inputs& in) {
  AdEmaMixOptions o;
  o.beta1 = in.options.adam_beta1;
  o.beta2 = in.options.adam_beta2;
  o.eps = in.options.adam_epsilon;
  in.args.take("beta1", &o.beta1);
  in.args.take("beta2", &o.beta2);
  in.args.take("beta3", &o.beta3);
  in.args.take("alpha", &o.alpha);
  in.args.take("eps", &o.eps);
  in.args.take("t_alpha", &o.t_alpha);
  in.args.take("t_beta3", &o.t_beta3);
  return build_bnb<AdEmaMix>(in, o);
}

Made make_bnb_rms_prop(Inputs& in) {
  BnbRmsPropOptions o;
  in.args.take("alpha", &o.alpha);
  in.args.take("eps", &o.eps);
  return build_bnb<BnbRmsProp>(in, o);
}

/// create_lorafa_optimizer() passes a rate and a decay.
Made make_lora_fa(Inputs& in) {
  LoraFaOptions o{.lr = in.options.lr, .weight_decay = in.options.weight_decay};
  in.args.take("beta1", &o.beta1);
  in.args.take("beta2", &o.beta2);
  in.args.take("eps", &o.eps);
  in.args.take("weight_decay", &o.weight_decay);
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
  in.args.take("max_lr", &o.max_lr);
  in.args.check_all_taken();
  return std::make_unique<StableAdamW>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
}

// The betas and eps are the class's own: Trainer passes neither.
Made make_grok_adamw(Inputs& in) {
  GrokAdamWOptions o;
  o.lr = in.options.lr;
  o.weight_decay = in.options.weight_decay;
  in.args.take("alpha_init", &o.alpha_init);
  in.args.take("lamb", &o.lamb);
  in.args.take("gamma", &o.gamma);
  double signal_decay = 0.1;  // of a signal that Trainer never gives
  in.args.take("grokking_signal_decay_rate", &signal_decay);
  in.args.take("gradient_clipping", &o.gradient_clipping);
  in.args.check_all_taken();
  return std::make_unique<GrokAdamW>(std::move(in.parameters), std::move(in.slices), o, std::move(in.group));
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
  };
  return table;
}

/// Names that Trainer knows and nothing here builds, and why.
const std::vector<std::pair<std::string, std::string>>& missing() {
  const char* kDevice = "belongs to another device than the CPU";
  const char* kLowRank =
      "projects whole gradient matrices to a low rank, which no rank holds here: parameters and gradients are sharded";
  const char* kTwoWeights = "evaluates and saves other weights than it trains, which is not built";
  const char* kTorchao = "keeps torchao's states of few bits, which are in other blocks than bitsandbytes'";
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"adamw_torch_xla", kDevice},
      {"adamw_torch_npu_fused", kDevice},
      {"adamw_anyprecision", "belongs to torchdistx, which is abandoned"},
      {"adamw_torch_4bit", kTorchao},
      {"adamw_torch_8bit", kTorchao},
      {"galore_adamw", kLowRank},
      {"galore_adamw_8bit", kLowRank},
      {"galore_adafactor", kLowRank},
      {"galore_adamw_layerwise", kLowRank},
      {"galore_adamw_8bit_layerwise", kLowRank},
      {"galore_adafactor_layerwise", kLowRank},
      {"apollo_adamw", kLowRank},
      {"apollo_adamw_layerwise", kLowRank},
      {"lomo", "updates parameters inside of backward, before gradients are averaged over ranks and clipped"},
      {"adalomo", "updates parameters inside of backward, before gradients are averaged over ranks and clipped"},
      {"schedule_free_radam", kTwoWeights},
      {"schedule_free_adamw", kTwoWeights},
      {"schedule_free_sgd", kTwoWeights}};
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
    Inputs in{
        name, options, OptimArgs(options.optim_args, name), std::move(parameters), std::move(slices), std::move(group)};
    return make(in);
  }
  refuse(name);
}

// Trainer's patterns: bias, layernorm, rmsnorm, (?:^|\.)norm(?:$|\.), _norm(?:$|\.), searched in the lower-case name.
bool decays_by_name(const std::string& parameter) {
  std::string name = parameter;
  for (auto& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* part : {"bias", "layernorm", "rmsnorm"})
    if (name.find(part) != std::string::npos) return false;
  for (auto at = name.find("norm"); at != std::string::npos; at = name.find("norm", at + 1)) {
    const bool begins = at == 0 || name[at - 1] == '.' || name[at - 1] == '_';
    const bool ends = at + 4 == name.size() || name[at + 4] == '.';
    if (begins && ends) return false;
  }
  return true;
}

}  // namespace tessera::optim
