#pragma once
// One batch of preference training on one rank: forward passes, the table of the whole batch on every rank, the loss.
#include <cstdint>
#include <optional>

#include "data/preference_dataset.h"
#include "models/model.h"
#include "preference/objective.h"
#include "tessera/comm/communicator.h"

namespace tessera::tasks {

/// This rank's rows of a batch.
struct PreferencePart {
  data::PreferenceBatch batch;
  std::optional<data::PreferenceBatch> mismatched = {};  // KTO
  at::Tensor row_ids;                                    // [R] int64, as models::ModelInput
  std::uint64_t first_draw = 0;
  double embedding_noise = 0;       // as models::ModelInput
  std::int64_t first = 0, all = 0;  // these are rows [first, first + batch.rows) of the whole batch's `all`
};

/// Log-probabilities of the reference for the rows of a part, float64; [sides, rows], and [rows] of the mismatched.
struct ReferenceLogps {
  at::Tensor completions, mismatched;
};

/// Collective (units are gathered): one pass of the model as it is, without gradients.
ReferenceLogps logps_of_part(models::Model& model, const PreferencePart& part, const preference::Objective& objective);

/// Collective: one pass of the model as it is over the part's rows, for who looks at what layers see. What the loss
/// scores is labelled; of a reward model, which scores rows, nothing is.
void show_part(models::Model& model, const PreferencePart& part, const preference::Objective& objective);

struct PreferenceStep {
  at::Tensor loss;                // of the whole batch / ranks, with the whole batch's gradient to this rank's rows
  preference::Loss result;        // of the whole batch, the same on every rank
  preference::Completions table;  // likewise; own rows with their graph
};

/// Collective. The loss is that of one process with all rows of the batch: every rank gets the numbers of the others'
/// rows (some for each row, no tokens), and takes them for constants. The model's mode says whether it drops out.
PreferenceStep preference_step(models::Model& model, const PreferencePart& part, const ReferenceLogps& reference,
                               const preference::Objective& objective, comm::Communicator& group);

}  // namespace tessera::tasks
