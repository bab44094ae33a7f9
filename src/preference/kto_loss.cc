#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/nanmean.h>
#include <ATen/ops/nansum.h>
#include <ATen/ops/sigmoid.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "preference/loss.h"
#include "preference/measures.h"

namespace tessera::preference {
namespace {

/// A range whose ends are rounded and shown as Python does it.
struct Bounds {
  std::string low, high;
  bool hold(double weight) const { return std::stod(low) <= weight && weight <= std::stod(high); }
  std::string text() const { return "[" + low + ", " + high + "]"; }
};

std::string two_places(double value) {
  auto text = fmt::format("{:.2f}", value);
  return text.ends_with('0') ? text.substr(0, text.size() - 1) : text;
}

}  // namespace

Loss kto_loss(const Completions& rows, const KtoOptions& o) {
  const auto label = rows.get(Column::kLabel).gt(0.5);
  const auto desirable = label.nonzero().flatten(), undesirable = label.logical_not().nonzero().flatten();
  const auto ratios = rows.get(Column::kLogps) - rows.get(Column::kRefLogps);
  const bool has_kl = o.loss == KtoLoss::kKto;
  const auto kl_of_rows = rows.get(Column::kKlLogps) - rows.get(Column::kKlRefLogps);
  const double kl = has_kl ? std::max(0.0, mean_of(kl_of_rows)) : 0;
  const auto chosen = ratios.index_select(0, desirable), rejected = ratios.index_select(0, undesirable);
  Loss out;
  out.losses = at::cat({o.desirable_weight * at::sigmoid(-o.beta * (chosen - kl)),
                        o.undesirable_weight * at::sigmoid(-o.beta * (kl - rejected))});
  out.loss = at::nanmean(out.losses);
  out.chosen_rewards = o.beta * chosen.detach();
  out.rejected_rewards = o.beta * rejected.detach();

  const double tokens = total(rows.get(Column::kPredicted));
  out.metrics = {{"kl", kl}, {"entropy", ratio(total(rows.get(Column::kEntropy)), tokens)}};
  const auto of = [&](Column c, const at::Tensor& which) { return rows.get(c).detach().index_select(0, which); };
  const auto side = [&](const std::string& name, const at::Tensor& which) {
    const double count = total(of(Column::kPredicted, which));
    if (count > 0) out.metrics.emplace_back("logits/" + name, total(of(Column::kLogits, which)) / count);
  };
  side("chosen", desirable);
  side("rejected", undesirable);
  const auto rewards = [&](const std::string& name, const at::Tensor& reward, const at::Tensor& which) {
    const auto count = static_cast<double>(which.numel());
    if (count == 0) return 0.0;
    const double value = at::nansum(reward).item<double>() / count;
    out.metrics.emplace_back("rewards/" + name, value);
    out.metrics.emplace_back("logps/" + name, at::nansum(of(Column::kLogps, which)).item<double>() / count);
    return value;
  };
  const double margin =
      rewards("chosen", out.chosen_rewards, desirable) - rewards("rejected", out.rejected_rewards, undesirable);
  if (desirable.numel() > 0 && undesirable.numel() > 0) out.metrics.emplace_back("rewards/margins", margin);
  return out;
}

std::string note_on_balance(const KtoOptions& o, std::int64_t desirable, std::int64_t rows) {
  const std::int64_t good = std::max<std::int64_t>(desirable, 1), bad = std::max<std::int64_t>(rows - good, 1);
  if (good == bad) return {};
  const double goods = static_cast<double>(good), bads = static_cast<double>(bad);
  const double of_good = bads * o.undesirable_weight / goods, of_bad = goods * o.desirable_weight / bads;
  const Bounds for_good{two_places(of_good), two_places(of_good * 1.33)},
      for_bad{two_places(of_bad / 1.33), two_places(of_bad)};
  if (for_good.hold(o.desirable_weight) || for_bad.hold(o.undesirable_weight)) return {};
  return fmt::format(
      "You have different amounts of desirable/positive and undesirable/negative examples but the weights on the "
      "desirable and undesirable losses don't seem to be in an ideal range. Based on your data, we recommend EITHER "
      "desirable_weight in {} or undesirable_weight in {} (but NOT BOTH). See the documentation on how to optimally "
      "set these weights.",
      for_good.text(), for_bad.text());
}

}  // namespace tessera::preference
