#pragma once
// What a training program prints. Tasks that stand for a program of their own show its lines; the others the Trainer's
// rows.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "train/trainer.h"

namespace tessera::train {

using Metrics = std::vector<std::pair<std::string, double>>;  // "eval_loss" -> value

/// The lines of a program in place of the Trainer's rows on standard output. Log rows go to the metrics file,
/// TensorBoard and trainer_state.json in either case. All calls are collective.
class Presentation {
 public:
  virtual ~Presentation() = default;
  /// What an evaluation gave; nothing else is said of it unless on_epoch_end() follows.
  virtual void on_evaluation(const Metrics& metrics, bool at_epoch_end) = 0;
  /// metrics: of the evaluation at the epoch's end, null where there was none; is_best: no evaluation before it was as
  /// good. Returns a row for the metrics file.
  virtual nlohmann::ordered_json on_epoch_end(const EpochReport& epoch, const Metrics* metrics, bool is_best) = 0;
};

}  // namespace tessera::train
