#include "preference/objective.h"

#include <fmt/format.h>

#include <map>

#include "tessera/base/error.h"

namespace tessera::preference {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& value) {
  throw ConfigError("--" + name + " expects " + expected + ", found '" + value + "'", name);
}

double number(const std::string& name, const std::string& value) {
  std::size_t used = 0;
  double out = 0;
  try {
    out = std::stod(value, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != value.size()) refuse(name, "a number", value);
  return out;
}

std::vector<std::string> words(const std::string& value) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= value.size();) {
    const auto end = std::min(value.find(',', begin), value.size());
    if (end > begin) out.push_back(value.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

template <class E>
E named(const std::string& name, const std::string& value, const std::map<std::string, E>& known) {
  if (const auto it = known.find(value); it != known.end()) return it->second;
  std::string names;
  for (const auto& [word, unused] : known) names += (names.empty() ? "" : ", ") + word;
  refuse(name, "one of " + names, value);
}

bool is_off(const std::string& value) {
  return value.empty() || value == "none" || value == "null";
}

bool truth(const std::string& name, const std::string& value) {
  if (value == "true" || value == "false") return value == "true";
  refuse(name, "true or false", value);
}

bool set_dpo(DpoOptions& o, const std::string& name, const std::string& value) {
  const auto plain = [&] { return number(name, value); };
  if (name == "loss_type") {
    o.losses.clear();
    for (const auto& word : words(value)) o.losses.push_back(dpo_loss_named(word));
    if (o.losses.empty()) refuse(name, "the name of a loss", value);
  } else if (name == "loss_weights") {
    o.weights.clear();
    if (is_off(value)) return true;
    for (const auto& word : words(value)) o.weights.push_back(number(name, word));
  } else if (name == "beta") {
    o.beta = plain();
  } else if (name == "label_smoothing") {
    o.label_smoothing = plain();
  } else if (name == "discopop_tau") {
    o.discopop_tau = plain();
  } else if (name == "ld_alpha") {
    o.ld_alpha = is_off(value) ? std::nullopt : std::optional<double>(plain());
  } else if (name == "use_weighting") {
    o.use_weighting = truth(name, value);
  } else if (name == "f_divergence_type") {
    o.divergence = named<Divergence>(name, value,
                                     {{"reverse_kl", Divergence::kReverseKl},
                                      {"forward_kl", Divergence::kForwardKl},
                                      {"js_divergence", Divergence::kJs},
                                      {"alpha_divergence", Divergence::kAlpha}});
  } else if (name == "f_alpha_divergence_coef") {
    o.alpha_coefficient = plain();
  } else {
    return false;
  }
  return true;
}

bool set_cpo(CpoOptions& o, const std::string& name, const std::string& value) {
  const std::map<std::string, double*> numbers = {{"beta", &o.beta},
                                                  {"label_smoothing", &o.label_smoothing},
                                                  {"cpo_alpha", &o.cpo_alpha},
                                                  {"simpo_gamma", &o.simpo_gamma},
                                                  {"alpha", &o.alpha}};
  if (const auto it = numbers.find(name); it != numbers.end()) {
    *it->second = number(name, value);
    return true;
  }
  if (name != "loss_type") return false;
  o.loss = named<CpoLoss>(
      name, value,
      {{"sigmoid", CpoLoss::kSigmoid}, {"hinge", CpoLoss::kHinge}, {"ipo", CpoLoss::kIpo}, {"simpo", CpoLoss::kSimpo}});
  return true;
}

bool set_kto(KtoOptions& o, const std::string& name, const std::string& value) {
  const std::map<std::string, double*> numbers = {
      {"beta", &o.beta}, {"desirable_weight", &o.desirable_weight}, {"undesirable_weight", &o.undesirable_weight}};
  if (const auto it = numbers.find(name); it != numbers.end()) {
    *it->second = number(name, value);
    return true;
  }
  if (name != "loss_type") return false;
  o.loss = named<KtoLoss>(name, value, {{"kto", KtoLoss::kKto}, {"apo_zero_unpaired", KtoLoss::kApoZeroUnpaired}});
  return true;
}

}  // namespace

Loss Objective::operator()(const Completions& batch) const {
  switch (method) {
    case Method::kDpo:
      return dpo_loss(batch, dpo);
    case Method::kOrpo:
      return orpo_loss(batch, orpo_beta);
    case Method::kCpo:
      return cpo_loss(batch, cpo);
    case Method::kKto:
      return kto_loss(batch, kto);
    case Method::kReward:
      return reward_loss(batch, reward);
  }
  throw InternalError("no such method");
}

bool set_argument(Objective& o, const std::string& name, const std::string& value) {
  switch (o.method) {
    case Method::kDpo:
      return set_dpo(o.dpo, name, value);
    case Method::kOrpo:
      if (name != "beta") return false;
      o.orpo_beta = number(name, value);
      return true;
    case Method::kCpo:
      return set_cpo(o.cpo, name, value);
    case Method::kKto:
      return set_kto(o.kto, name, value);
    case Method::kReward:
      if (name != "center_rewards_coefficient") return false;
      o.reward.center_rewards_coefficient = is_off(value) ? std::nullopt : std::optional<double>(number(name, value));
      return true;
  }
  return false;
}

}  // namespace tessera::preference
