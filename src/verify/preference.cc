// Family K of the goldens: losses of preference training with their gradients, as TRL's trainers compute them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/json_text.h"
#include "models/names_in_files.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "verify/noise.h"
#include "verify/preference_folders.h"
#include "verify/reference_json.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using preference::Column;
using preference::Method;

constexpr double kLogpsTolerance = 1e-5, kLossTolerance = 2e-5, kGradientTolerance = 1e-3;

/// Which trainer a case is of, by what its batch and its numbers hold.
Method method_of(const json& expect, const io::TensorSource& batch) {
  if (expect.contains("model")) return Method::kReward;
  if (batch.find("label")) return Method::kKto;
  if (batch.find("completion_mask")) return Method::kDpo;
  const auto& first = expect.at("cases").front();
  return first.at("metrics").contains("log_odds_ratio") ? Method::kOrpo : Method::kCpo;
}

preference::Objective objective_of(Method method, const json& kwargs) {
  preference::Objective objective;
  objective.method = method;
  for (const auto& [name, value] : kwargs.items()) {
    if (method == Method::kReward && name == "margins") continue;  // in the batch
    if (!set_argument(objective, name, value))
      throw ConfigError(
          "expect.json: kwargs." + name + " = " + json_text(value) + " is not known; this case is not compared",
          "kwargs." + name);
  }
  return objective;
}

/// The sides of a batch as rows of one: [2 n, S].
data::PreferenceBatch whole_batch(const io::TensorSource& in, Method method) {
  data::PreferenceBatch out;
  const auto read = [&](const std::string& name) { return io::read_tensor(in, name); };
  if (method == Method::kOrpo || method == Method::kCpo) {
    const auto length = std::max(read("chosen_input_ids").size(1), read("rejected_input_ids").size(1));
    const auto both = [&](const std::string& name, std::int64_t padding) {
      const auto side = [&](const char* which) {
        const auto t = read(std::string(which) + name);
        return at::constant_pad_nd(t, {0, length - t.size(1)}, padding);
      };
      return at::cat({side("chosen_"), side("rejected_")});
    };
    out.input_ids = both("input_ids", 0);
    out.attention_mask = both("attention_mask", 0);
    out.completion_mask = both("labels", -100).ne(-100).to(at::kLong);
  } else {
    out.input_ids = read("input_ids");
    out.attention_mask = read("attention_mask");
    out.completion_mask = in.find("completion_mask") ? read("completion_mask") : out.attention_mask;
  }
  if (in.find("label")) out.labels = read("label").to(at::kBool);
  if (in.find("margin")) out.margins = read("margin");
  return out;
}

/// Rows [begin, end) of each side; of none a row of padding.
data::PreferenceBatch rows_of(const data::PreferenceBatch& all, const Span& rows, std::int64_t sides) {
  const auto n = all.input_ids.size(0) / sides;
  const auto cut = [&](const at::Tensor& t) {
    if (rows.size() == 0) return at::zeros({1, t.size(1)}, t.options());
    const auto first = t.narrow(0, rows.begin, rows.size());
    return sides == 1 ? first : at::cat({first, t.narrow(0, n + rows.begin, rows.size())});
  };
  data::PreferenceBatch out;
  out.input_ids = cut(all.input_ids);
  out.attention_mask = cut(all.attention_mask);
  out.completion_mask = cut(all.completion_mask);
  if (all.labels.defined()) out.labels = all.labels.narrow(0, rows.begin, rows.size());
  if (all.margins.defined()) out.margins = all.margins.narrow(0, rows.begin, rows.size());
  out.rows = rows.size();
  return out;
}

tasks::PreferencePart part_of(const io::TensorSource& in, const preference::Objective& objective,
                              const comm::Communicator& group) {
  const auto all = whole_batch(in, objective.method);
  const auto sides = objective.sides(), n = all.input_ids.size(0) / sides;
  const Span rows = span_of(n, group);
  tasks::PreferencePart part;
  part.batch = rows_of(all, rows, sides);
  if (objective.needs_mismatched()) {
    data::PreferenceBatch other;
    other.input_ids = io::read_tensor(in, "KL_input_ids");
    other.attention_mask = io::read_tensor(in, "KL_attention_mask");
    other.completion_mask = io::read_tensor(in, "KL_completion_mask");
    part.mismatched = rows_of(other, rows, 1);
  }
  part.first = rows.size() == 0 ? 0 : rows.begin;
  part.all = n;
  return part;
}

/// What TRL's loss function computed on the way, by its names.
std::map<std::string, at::Tensor> own_values(const tasks::PreferenceStep& step, const preference::Objective& o) {
  const auto& t = step.table;
  std::map<std::string, at::Tensor> out = {{"losses", step.result.losses},
                                           {"chosen_rewards", step.result.chosen_rewards},
                                           {"rejected_rewards", step.result.rejected_rewards},
                                           {"rewards_chosen", step.result.chosen_rewards},
                                           {"rewards_rejected", step.result.rejected_rewards}};
  if (o.method == Method::kDpo) {
    out["chosen_logps"] = t.chosen(Column::kLogps), out["rejected_logps"] = t.rejected(Column::kLogps);
    out["ref_chosen_logps"] = t.chosen(Column::kRefLogps), out["ref_rejected_logps"] = t.rejected(Column::kRefLogps);
    out["margins"] = step.result.chosen_rewards - step.result.rejected_rewards;
    out["accuracies"] = out["margins"].gt(0).to(at::kFloat);
  } else if (o.method == Method::kKto) {
    out["completion_logps"] = t.get(Column::kLogps), out["ref_completion_logps"] = t.get(Column::kRefLogps);
    if (o.needs_mismatched())
      out["KL_logps"] = t.get(Column::kKlLogps), out["ref_KL_logps"] = t.get(Column::kKlRefLogps);
  } else if (o.method != Method::kReward) {
    const bool means = o.method == Method::kOrpo || o.cpo.loss == preference::CpoLoss::kIpo ||
                       o.cpo.loss == preference::CpoLoss::kSimpo;
    const auto logps = [&](std::int64_t side) {
      return means ? t.get(Column::kLogps, side) / t.get(Column::kPredicted, side) : t.get(Column::kLogps, side);
    };
    out["policy_chosen_logps"] = logps(0), out["policy_rejected_logps"] = logps(1);
  }
  return out;
}

void compare_values(Comparison& table, const std::string& name, const io::TensorSource& expected,
                    const tasks::PreferenceStep& step, const preference::Objective& objective) {
  const auto own = own_values(step, objective);
  for (const auto& [key, value] : own) {
    if (!value.defined() || !expected.find(key)) continue;
    const bool is_loss = key == "losses", is_logps = key.ends_with("logps");
    // Rewards are small differences of sums that are rounded in float32; so are losses near zero (hinge, ipo).
    const double scale = is_logps ? 1e-30 : is_loss ? kSmallLoss : 1.0;
    add_scaled(table,
               (is_loss    ? "losses "
                : is_logps ? "logps "
                           : "rewards ") +
                   name + "." + key,
               value, io::read_tensor(expected, key), scale, is_logps ? kLogpsTolerance : kLossTolerance);
  }
  add_scaled(table, "loss " + name, step.result.loss.item<double>(), io::read_tensor(expected, "loss").item<double>(),
             kSmallLoss, kLossTolerance);
}

/// The logged numbers. Means of logits over padding, and counts of tokens over a run, are not kept here.
void compare_metrics(Comparison& table, const std::string& name, const json& expected, const preference::Loss& result,
                     Method method) {
  for (const auto& [key, value] : result.metrics) {
    const bool over_padding = key.starts_with("logits/") && (method == Method::kOrpo || method == Method::kCpo);
    if (over_padding || !expected.contains(key)) continue;
    add_scaled(table, "metrics " + name + "." + key, value, expected.at(key).get<double>(), 1.0, kLossTolerance);
  }
  for (const auto& [key, value] : expected.items()) {
    const auto known =
        std::any_of(result.metrics.begin(), result.metrics.end(), [&](const auto& m) { return m.first == key; });
    if (!known && key != "num_tokens") table.fail("metrics " + name + "." + key, "is not logged");
  }
}

void compare_gradients_of(Comparison& table, const std::string& name, const io::TensorSource& expected,
                          const tasks::Assembled& a) {
  const models::NamesInFiles in_model(*a.model);
  std::map<std::string, std::string> names;  // ours -> theirs
  for (const auto& info : expected.tensors()) {
    if (!info.name.starts_with("grad.")) continue;
    const auto plain = plain_name(info.name.substr(5)), known = in_model.parameter_of(plain);
    names[known.empty() ? plain : known] = info.name;
  }
  a.sharded->visit_full_grads([&](const std::string& parameter, const at::Tensor& g) {
    const auto it = names.find(parameter);
    if (it == names.end()) return table.fail_unless_zero("gradient " + name + "." + parameter, g);
    const auto reference = io::read_tensor(expected, it->second);
    const double largest = std::max(reference.abs().max().item<double>(), 1e-30);
    add_scaled(table, "gradient " + name + "." + parameter, g, reference, 1e-30, kGradientTolerance + 1e-6 / largest);
    names.erase(it);
  });
  for (const auto& [parameter, theirs] : names) table.fail("gradient " + name + "." + theirs, "was not computed");
}

struct Case {
  std::string name;
  json text;
  std::string tensors, batch;  // files
};

std::vector<Case> cases_of(const std::string& folder, const json& expect) {
  std::vector<Case> out;
  for (const auto& [name, text] : expect.at("cases").items()) {
    const auto tensors = fs::path(folder) / text.value("file", name + ".safetensors");
    out.push_back({name, text, tensors.string(),
                   text.contains("batch") ? (fs::path(folder) / text.at("batch").get<std::string>()).string()
                                          : tensors.string()});
  }
  return out;
}

/// Models by what a case says of them; the last ones are kept.
class Models {
 public:
  Models(const VerifyOptions& options, const json& expect, std::shared_ptr<comm::Communicator> group)
      : options_(options), expect_(expect), group_(std::move(group)) {}

  tasks::Assembled& policy(const Case& c) { return model(text(c, "policy")); }
  /// Null: the policy with its adapter off.
  models::Model* reference(const Case& c) {
    if (!expect_.contains("reference") || !model_place(options_.folder, text(c, "policy")).adapter.empty())
      return nullptr;
    return model(text(c, "reference")).model.get();
  }

 private:
  std::string text(const Case& c, const std::string& role) const {
    if (expect_.contains("model")) return expect_.at("model");
    const auto form = c.text.at("form").get<std::string>();
    const bool swapped = form == "full" && c.text.value("swapped", false);  // an adapter is always the policy's
    const std::string used = !swapped ? role : role == "policy" ? "reference" : "policy";
    return expect_.at(used).at(form);
  }
  tasks::Assembled& model(const std::string& text) {
    auto& found = models_[text];
    if (!found)
      found =
          std::make_unique<tasks::Assembled>(preference_model(model_place(options_.folder, text), options_, group_));
    return *found;
  }

  const VerifyOptions& options_;
  const json& expect_;
  std::shared_ptr<comm::Communicator> group_;
  std::map<std::string, std::unique_ptr<tasks::Assembled>> models_;
};

}  // namespace

bool verify_preference(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const json expect = read_reference_json(options.folder + "/expect.json");
  Models models(options, expect, group);
  Comparison table;
  const auto cases = cases_of(options.folder, expect);
  for (const auto& c : cases) {
    const auto batch = io::open_safetensors(c.batch), expected = io::open_safetensors(c.tensors);
    auto objective = objective_of(method_of(expect, *batch), c.text.at("kwargs"));
    auto& policy = models.policy(c);
    policy.model->eval();  // upstream has no dropout here
    const auto part = part_of(*batch, objective, *group);
    const auto reference = ask_reference(models.reference(c), *policy.model, part, objective);
    const auto step = tasks::preference_step(*policy.model, part, reference, objective, *group);
    step.loss.backward();
    compare_values(table, c.name, *expected, step, objective);
    compare_metrics(table, c.name, c.text.at("metrics"), step.result, objective.method);
    compare_gradients_of(table, c.name, *expected, policy);
    policy.sharded->zero_grad();
  }
  table.merge(*group);
  out << fmt::format("{} ({} cases of preference training, {} rank{})\n", fs::path(options.folder).filename().string(),
                     cases.size(), group->size(), group->size() == 1 ? "" : "s");
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
