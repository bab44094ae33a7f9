#include <ostream>

#include "checkpoint/checkpoint_saver.h"
#include "train/results.h"
#include "train/session.h"

namespace tessera::train {

void evaluate_only(const TrainingArguments& arguments, const SessionTask& task, comm::Communicator& group,
                   std::ostream& out) {
  checkpoint::CheckpointSaver folder(group, arguments.output_dir, 0, checkpoint::SaveQueue::Mode::kNow);  // locks it
  report::MetricsFile metrics(group.rank() == 0 ? arguments.metrics_path() : "");
  if (group.rank() == 0) folder.watch(metrics.hand_over_name());
  const Metrics measured = task.evaluate(report::bar_style(group.rank(), arguments.disable_tqdm));
  nlohmann::ordered_json row = named_values(measured);
  row["epoch"] = 0.0;
  folder.check_files();
  if (task.presentation)
    task.presentation->on_evaluation(measured, /*at_epoch_end=*/false);
  else
    out << python_text(row) << "\n" << std::flush;
  row["step"] = 0;
  metrics.write(std::move(row));
  if (group.rank() == 0) {
    nlohmann::json results = named_values(measured);
    results["eval_samples"] = task.num_eval_examples;
    save_metrics(arguments.output_dir, "eval", results);
    if (!task.presentation) out << metrics_block("eval", results) << std::flush;
  }
  if (task.samples) metrics.write({{"step", 0}, {"samples", task.samples()}});
}

}  // namespace tessera::train
