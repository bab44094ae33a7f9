#pragma once
// A training task on one rank: data, a model, what is trained and how it is evaluated, driven by one Trainer with
// transformers' TrainingArguments. Tasks (sft, seq2seq, summarize) add their data, their defaults and their lines.
#include <iosfwd>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "config/accelerate.h"
#include "data/dataset_options.h"
#include "tasks/assemble.h"
#include "tasks/invocations.h"
#include "tasks/job.h"
#include "tasks/lora_flags.h"
#include "tasks/memory_plan.h"
#include "tasks/push_to_hub.h"
#include "tasks/quant_flags.h"
#include "tasks/same_data.h"
#include "text/tokenizer.h"
#include "train/seconds.h"
#include "train/session.h"
#include "train/training_arguments.h"

namespace tessera::tasks {

/// What every training task is told.
struct JobOptions {
  std::string model_name_or_path;
  std::string tokenizer_name_or_path;  // empty: the model's folder
  LoraFlags adapter;
  QuantFlags quant;
  train::TrainingArguments training;
  std::optional<bool> print_model;  // unset: unless it is long
  bool save_model = true;
  UploadFlags upload;
  std::string max_memory;  // of a rank, "20GiB"; empty: no budget
  fsdp::GatherForm gather = fsdp::GatherForm::kAuto;
  std::vector<std::string> notes;                          // what was accepted without effect
  std::string command;                                     // "tessera sft"
  std::vector<std::pair<std::string, std::string>> given;  // flags and their values, for run.json
};

/// The flags that no group of others holds: --print_model, --save_model, --gather, --max_memory, --push_to_hub.
void add_job_flags(config::OptionTable& table, JobOptions& options, const char* group);
/// Behind the task's own checks: adapters, packed weights, the device, the arguments of training. measured: the names
/// of what evaluations give; empty: the data say them, and the job checks them then. Fills in the notes.
void check_job(JobOptions& options, const config::OptionTable& table, const std::vector<std::string>& measured,
               config::Problems& problems);

/// A sweep of evaluation counted and timed, by the Trainer's names.
train::Metrics timed_metrics(train::Metrics measured, double seconds, std::int64_t rows, std::int64_t batches,
                             const std::string& prefix = "eval");

class TrainingJob {
 public:
  virtual ~TrainingJob() = default;
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  /// Collective. False when it was interrupted.
  bool run();

 protected:
  /// out: rank 0's standard output, nothing elsewhere.
  TrainingJob(const JobOptions& options, models::ModelKind kind, std::shared_ptr<comm::Communicator> group,
              std::ostream& out, std::ostream& err);

  /// Opens the tokenizer and reads the rows, before there is a model. May change arguments_.
  virtual void load_data() = 0;
  /// Of load_data(): what all ranks must have alike.
  virtual std::vector<PreparedRows> prepared() const = 0;
  /// The launcher's settings, with the task's own.
  virtual config::AccelerateConfig launch();
  virtual void complete(AssembleOptions&) const {}
  /// Once there is a model: do the rows fit it?
  virtual void check_model() = 0;
  /// May change arguments_: what a schedule takes from the number of rows.
  virtual std::unique_ptr<train::Trainable> trainable() = 0;
  /// Collective.
  virtual std::unique_ptr<optim::Optimizer> optimizer();
  /// Rows that show a new adapter where to begin (init_lora_weights eva): the loss is one pass of the model.
  virtual std::unique_ptr<train::Trainable> shown_rows() { return trainable(); }
  /// Rows, evaluation, samples and lines; run() adds what is the model's.
  virtual train::SessionTask session_task() = 0;
  /// The sequences of tokens that a decoder is shown of a training row: packed documents, the sides of a pair.
  virtual TokenSequences sequences(std::int64_t) const { return {}; }
  /// Tokens of the longest row, for the plan of memory; 0: activations are not planned. Of an encoder-decoder model the
  /// decoder's; longest_source(): the encoder's.
  virtual std::int64_t longest_row() const { return 0; }
  virtual std::int64_t longest_source() const { return 0; }
  /// Rows that a rank computes at a time, likewise.
  virtual std::int64_t rows_of_a_batch() const { return arguments_.per_device_train_batch_size; }
  /// Of a run that has ended, while it still holds the folder; behind it comes the upload.
  virtual void save_result();
  /// Without training: there are rows to evaluate, and that was not declined.
  virtual bool evaluates_alone() const { return true; }
  /// Collective, at the end: what else the model is asked for.
  virtual void predict() {}
  virtual bool reports_memory() const { return true; }

  /// Collective: the model or adapter with its tokenizer. queue: see checkpoint/pretrained.h.
  virtual void save(const std::string& folder, checkpoint::SaveQueue* queue);

  const models::ModelKind kind_;
  std::shared_ptr<comm::Communicator> group_;
  std::ostream& out_;
  std::ostream& err_;
  train::TrainingArguments arguments_;
  std::vector<std::string> notes_;
  std::string folder_, adapter_folder_, tokenizer_path_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<checkpoint::ClassifierNames> classes_;  // of a classifier, for config.json
  Assembled model_;
  at::Device device_ = at::kCPU;  // that computes

  /// Without rows there are no evaluations, unless a flag insists on them: a ConfigError that says what is missing.
  void require_rows_to_evaluate(std::int64_t rows, const std::string& missing);
  void require_second_split(bool there, const data::DatasetOptions& dataset);

 private:
  void assemble_model();
  /// Collective. Gives an adapter that begins with EVA its ranks; first values of A, none: it begins as others do.
  peft::Values begin_with_rows(AssembleOptions& options);
  /// Plans what a rank will hold, and refuses what is over the budget.
  void plan_memory(const Assembled& model, const fsdp::FsdpOptions& fsdp);
  void say_where_state_is(optim::Optimizer& optimizer);
  bool train();
  /// Of rank 0: what train/results.h says of the run, of the weights that it leaves.
  void write_results(const train::TrainerState& state, const train::SessionTask& task);
  /// For run.json: flags, the launch, the plan.
  nlohmann::ordered_json settings();

  const JobOptions& options_;
  RunUploads uploads_;
  const train::Clock::time_point started_ = train::Clock::now();
  bool scale_loss_ = false;                // fp16
  estimate::RankPlan plan_, device_plan_;  // device_plan_: empty where the CPU computes
  at::ScalarType compute_dtype_ = at::kFloat;
};

/// The file that tells whether a result is there; empty: the run writes none.
std::string result_file(const JobOptions& options);

/// By which `tessera status` finds this rank.
void note_folder(comm::Communicator& group, const std::string& output_dir);

/// Connects the ranks and runs the job on this one. Returns the exit code. result: as result_file() gives it.
template <class Job, class Options>
int run_job(const Options& options, const std::string& result, std::ostream& out, std::ostream& err) {
  train::prepare_output(options.training, options.training.do_train, result);
  auto group = comm::connect();
  note_folder(*group, options.training.output_dir);
  std::ostringstream nowhere;
  const bool finished = Job(options, group, group->rank() == 0 ? out : nowhere, err).run();
  group->barrier();
  return finished ? 0 : interrupted_exit_code(*group);
}

}  // namespace tessera::tasks
