#include "optim/plateau.h"

#include <algorithm>
#include <limits>

#include "base/json_text.h"

namespace tessera::optim {
namespace {

class Plateau final : public Schedule {
 public:
  Plateau(double lr, ScheduleKeys& keys)
      : lr_(lr),
        smaller_is_better_(keys.word("mode", "min", {"min", "max"}) == "min"),
        relative_(keys.word("threshold_mode", "rel", {"rel", "abs"}) == "rel"),
        factor_(keys.number("factor", 0.1)),
        threshold_(keys.number("threshold", 1e-4)),
        min_lr_(keys.number("min_lr", 0)),
        eps_(keys.number("eps", 1e-8)),
        patience_(keys.integer("patience").value_or(10)),
        cooldown_(keys.integer("cooldown").value_or(0)) {
    if (factor_ >= 1) keys.fail("expected a factor below 1, found " + std::to_string(factor_));
    best_ = smaller_is_better_ ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  }

  double lr(std::int64_t /*step*/) const override { return lr_; }
  bool listens() const override { return true; }

  void observe(double metric) override {
    if (improves(metric)) {
      best_ = metric;
      bad_ = 0;
    } else {
      ++bad_;
    }
    if (cooling_ > 0) {
      --cooling_;
      bad_ = 0;
    }
    if (bad_ <= patience_) return;
    const auto lower = std::max(lr_ * factor_, min_lr_);
    if (lr_ - lower > eps_) lr_ = lower;
    cooling_ = cooldown_;
    bad_ = 0;
  }

  std::string state() const override {
    nlohmann::json state = {{"lr", lr_}, {"num_bad_epochs", bad_}, {"cooldown_counter", cooling_}};
    if (seen()) state["best"] = best_;
    return json_text(state);
  }

  void load_state(const std::string& json) override {
    const auto state = nlohmann::json::parse(json);
    lr_ = state.at("lr");
    bad_ = state.at("num_bad_epochs");
    cooling_ = state.at("cooldown_counter");
    if (state.contains("best")) best_ = state["best"];
  }

 private:
  bool seen() const { return best_ - best_ == 0; }  // infinite until the first metric; JSON has no infinity
  bool improves(double metric) const {
    if (!seen()) return smaller_is_better_ ? metric < best_ : metric > best_;
    const auto margin = relative_ ? best_ * threshold_ : threshold_;
    return smaller_is_better_ ? metric < best_ - margin : metric > best_ + margin;
  }

  double lr_;
  bool smaller_is_better_, relative_;
  double factor_, threshold_, min_lr_, eps_, best_;
  std::int64_t patience_, cooldown_, bad_ = 0, cooling_ = 0;
};

}  // namespace

std::unique_ptr<Schedule> make_plateau(double lr, ScheduleKeys& keys) {
  return std::make_unique<Plateau>(lr, keys);
}

}  // namespace tessera::optim
