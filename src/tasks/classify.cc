#include "tasks/classify.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/file.h"
#include "base/json_text.h"
#include "data/epoch_sampler.h"
#include "tasks/classify_data.h"
#include "tasks/classify_metrics.h"
#include "tasks/find_non_finite.h"
#include "tasks/row_sampler.h"
#include "tasks/training_tokenizer.h"
#include "tessera/base/error.h"
#include "train/seconds.h"

namespace tessera::tasks {
namespace {

using families::ProblemType;

const char* name_of(ProblemType problem) {
  switch (problem) {
    case ProblemType::kRegression:
      return "regression";
    case ProblemType::kMultiLabel:
      return "multi_label_classification";
    default:
      return "single_label_classification";
  }
}

models::ModelInput class_input(const ClassBatch& batch, double normalizer) {
  models::ModelInput in;
  in.input_ids = batch.input_ids;
  in.attention_mask = batch.attention_mask;
  in.token_type_ids = batch.token_type_ids;
  in.labels = batch.labels;
  in.row_ids = batch.row_ids;
  in.loss_normalizer = normalizer;
  return in;
}

/// Numbers that the loss of a row is a sum over: transformers takes the mean over all of a batch.
double terms_of_row(const ClassRows& rows) {
  return rows.labels.dim() == 2 ? static_cast<double>(rows.labels.size(1)) : 1;
}

class ClassTrainable final : public train::Trainable {
 public:
  ClassTrainable(models::Model& model, const ClassRows& rows, std::int64_t pad_id, std::int64_t length,
                 const train::TrainingArguments& arguments, comm::Communicator& group)
      : model_(model),
        rows_(rows),
        pad_id_(pad_id),
        length_(length),
        mine_(row_sampler(rows.size(), arguments, group, false)),
        all_(row_sampler(rows.size(), arguments, group, true)) {}

  std::int64_t batches_per_epoch() const override { return mine_.batches_per_epoch(); }
  double loss_tokens(std::int64_t, std::int64_t batch) override {
    return static_cast<double>(mine_.rows_of_all(batch)) * terms_of_row(rows_);
  }
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override {
    mine_.seek({epoch, batch});
    const auto numbers = mine_.next();
    note_rows(numbers);
    const auto rows = collate_classes(rows_, numbers, pad_id_, length_);
    auto in = class_input(rows, normalizer);
    in.first_draw = train::first_draw_of_epoch(epoch);
    in.loss_scale = loss_scale();
    const auto loss = model_(std::move(in)).loss;
    return rows.is_empty ? loss * 0 : loss;
  }
  void set_training(bool training) override { model_.train(training); }
  std::int64_t input_tokens(std::int64_t epoch, std::int64_t batch) override {
    all_.seek({epoch, batch});
    std::size_t tokens = 0;
    for (const auto row : all_.next()) tokens += rows_.ids[static_cast<std::size_t>(row)].size();
    return static_cast<std::int64_t>(tokens);
  }
  std::int64_t rows(std::int64_t batch) const override { return mine_.rows_of_all(batch); }
  std::string find_non_finite(std::int64_t epoch, std::int64_t batch) override {
    return tasks::find_non_finite(model_, [&] { (void)loss(epoch, batch, 1.0); });
  }

 private:
  models::Model& model_;
  const ClassRows& rows_;
  std::int64_t pad_id_, length_;
  data::EpochSampler mine_, all_;  // this rank's rows; every rank's
};

class ClassifyJob final : public TrainingJob {
 public:
  ClassifyJob(const ClassifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
              std::ostream& err)
      : TrainingJob(options, models::ModelKind::kSequenceClassification, std::move(group), out, err),
        o_(options),
        known_(known_classes(folder_, adapter_folder_)) {}

 private:
  void load_data() override {
    data_ = load_class_data(o_, tokenizer_path_, known_);
    tokenizer_ = data_.tokenizer;
    for (const auto& note : data_.notes) notes_.push_back(note);
    config::Problems problems;
    problems.set_source(config::Problems::Source::kHost);  // the data says what is measured
    train::check_metric(arguments_, names_of_class_metrics(data_.problem, data_.measures), problems);
    problems.throw_all();
    if (arguments_.token_loss.label_smoothing > 0 && data_.problem != ProblemType::kSingleLabel)
      throw ConfigError(
          fmt::format("--label_smoothing_factor smooths the one class of a row, and this is a {}; leave it out",
                      name_of(data_.problem)),
          "label_smoothing_factor");
    const auto labels = static_cast<std::int64_t>(data_.names.size());
    if (known_ && known_->config.num_labels != labels && !o_.ignore_mismatched_sizes)
      throw ConfigError(fmt::format("'{}' classifies into {} classes, the data has {} ({}); "
                                    "--ignore_mismatched_sizes true makes a new head",
                                    folder_, known_->config.num_labels, labels, fmt::join(data_.names, ", ")),
                        "ignore_mismatched_sizes");
    notes_.push_back(fmt::format("{}: {} labels ({})", name_of(data_.problem), labels, fmt::join(data_.names, ", ")));
    classes_ = checkpoint::ClassifierNames{
        .labels = data_.names, .problem_type = name_of(data_.problem), .pad_token_id = tokenizer_->pad_id()};
    if (arguments_.do_train || !o_.predict.do_predict)
      require_rows_to_evaluate(data_.validation.size(), "no rows are held out: give a --validation_split above 0");
  }

  std::vector<PreparedRows> prepared() const override {
    auto rows = prepared_rows(&data_.train, &data_.validation, o_.predict.do_predict ? &data_.test : nullptr);
    for (auto& more : prepared_rows<ClassRows>(nullptr, &data_.mismatched, &data_.mismatched_test))
      rows.push_back(std::move(more));
    return rows;
  }

  void complete(AssembleOptions& options) const override {
    options.classifier = models::ClassifierHead{
        .config = {.num_labels = static_cast<std::int64_t>(data_.names.size()), .problem = data_.problem},
        .pad_token_id = tokenizer_->pad_id()};
  }

  void check_model() override {
    classes_->architecture = model_.model->class_name();
    if (!model_.new_weights.empty())
      notes_.push_back(
          fmt::format("Some weights of {} were not initialized from the model checkpoint at {} and are "
                      "newly initialized: {}",
                      classes_->architecture, folder_, fmt::join(model_.new_weights, ", ")));
    require_rows_for(*tokenizer_, tokenizer_path_, model_.config.vocab_size);
    const auto longest = model_.config.max_positions;
    if (longest > 0 && o_.max_length > longest)
      throw ConfigError(
          fmt::format("--max_length {} is more than the {} positions of the model", o_.max_length, longest),
          "max_length");
  }

  std::unique_ptr<train::Trainable> trainable() override {
    return std::make_unique<ClassTrainable>(*model_.model, data_.train, tokenizer_->pad_id(), length(), arguments_,
                                            *group_);
  }

  train::SessionTask session_task() override {
    train::SessionTask task;
    task.num_examples = data_.train.size();
    task.num_eval_examples = data_.validation.size();
    task.evaluate = [this](const report::BarStyle& bars) { return evaluate(bars); };
    if (data_.problem != ProblemType::kRegression)
      task.samples = [this] {
        out_ << class_table(by_class_) << std::flush;
        return by_class_;
      };
    return task;
  }

  /// The metrics of MNLI's other rows end with _mm, as in run_glue.py.
  train::Metrics evaluate(const report::BarStyle& bars) {
    auto [metrics, by_class] = measure(data_.validation, bars);
    by_class_ = std::move(by_class);
    if (data_.mismatched.size() > 0)
      for (auto& [name, value] : measure(data_.mismatched, bars).first) metrics.emplace_back(name + "_mm", value);
    return metrics;
  }

  std::pair<train::Metrics, nlohmann::ordered_json> measure(const ClassRows& of, const report::BarStyle& bars) {
    const auto start = train::Clock::now();
    ClassCounts counts(data_.problem, static_cast<std::int64_t>(data_.names.size()), data_.measures);
    double loss = 0;
    const auto batches = visit(of, bars, "eval", [&](const ClassBatch& batch) {
      const auto out = (*model_.model)(class_input(batch, 1.0));
      if (batch.is_empty) return;
      loss += out.loss.item<double>();
      counts.add(out.logits, batch.labels);
    });
    counts.values().push_back(loss);
    counts.values() = train::sum_over_ranks(*group_, std::move(counts.values()));
    loss = counts.values().back();
    if (data_.measures == ClassMeasures::kCorrelations) gather_pairs(counts.pairs());
    const auto rows = of.size();
    train::Metrics metrics = counts.metrics();
    metrics.insert(metrics.begin(), {"eval_loss", loss / (static_cast<double>(rows) * terms_of_row(of))});
    return {timed_metrics(std::move(metrics), train::seconds_since(start), rows, batches),
            counts.by_class(data_.names)};
  }

  /// Collective: those of all ranks.
  void gather_pairs(std::vector<std::array<double, 2>>& pairs) {
    std::string bytes;
    for (const auto& pair : pairs) bytes.append(reinterpret_cast<const char*>(&pair), sizeof(pair));
    pairs.clear();
    for (const auto& of_rank : group_->all_gather_objects(bytes))
      for (std::size_t at = 0; at < of_rank.size(); at += sizeof(pairs[0]))
        std::memcpy(&pairs.emplace_back(), of_rank.data() + at, sizeof(pairs[0]));
  }

  /// Collective: calls `use` for every batch of this rank's, in order. Returns how many there were.
  template <class Use>
  std::int64_t visit(const ClassRows& rows, const report::BarStyle& bars, const char* name, const Use& use) {
    const c10::AutoGradMode no_grad(false);
    auto& model = *model_.model;
    const bool training = model.is_training();
    model.eval();
    data::EpochSampler sampler({.rows = rows.size(),
                                .per_device_batch = arguments_.per_device_eval_batch_size,
                                .rank = group_->rank(),
                                .world_size = group_->size(),
                                .shuffle = false,
                                .last_batch = data::LastBatch::kKeep});
    report::ProgressBar bar(err_, bars, sampler.batches_per_epoch(), name);
    for (std::int64_t b = 0; b < sampler.batches_per_epoch(); ++b) {
      use(collate_classes(rows, sampler.next(), tokenizer_->pad_id(), length()));
      bar.update();
    }
    bar.close();
    model.train(training);
    return sampler.batches_per_epoch();
  }

  bool evaluates_alone() const override { return o_.predict.do_eval && data_.validation.size() > 0; }

  /// As run_classification.py writes them, or run_glue.py.
  void predict() override {
    if (!o_.predict.do_predict) return;
    predict(data_.test, o_.task_name.empty() ? "" : "_" + o_.task_name);
    if (data_.mismatched_test.size() > 0) predict(data_.mismatched_test, "_mnli-mm");
  }

  void predict(const ClassRows& rows, const std::string& suffix) {
    std::map<std::int64_t, std::string> mine, all;  // by row
    visit(rows, report::bar_style(group_->rank(), arguments_.disable_tqdm), "predict", [&](ClassBatch batch) {
      batch.labels.reset();
      const auto out = (*model_.model)(class_input(batch, 1.0));
      if (batch.is_empty) return;
      for (std::int64_t i = 0; i < batch.row_ids.size(0); ++i)
        mine[batch.row_ids[i].item<std::int64_t>()] = predicted_text(data_.problem, out.logits[i], data_.names);
    });
    for (const auto& bytes : group_->all_gather_objects(json_text(nlohmann::json(mine))))
      all.merge(nlohmann::json::parse(bytes).get<std::map<std::int64_t, std::string>>());
    if (group_->rank() != 0) return;
    std::string text = "index\tprediction\n";
    for (const auto& [row, prediction] : all) text += fmt::format("{}\t{}\n", row, prediction);
    ensure_writable_folder(arguments_.output_dir);
    const auto file = fmt::format("{}/predict_results{}.txt", arguments_.output_dir, suffix);
    write_file_atomically(file, text);
    out_ << fmt::format("{} predictions saved in {}\n", all.size(), file) << std::flush;
  }

  std::int64_t longest_row() const override { return o_.max_length; }
  std::int64_t length() const { return o_.pad_to_max_length ? o_.max_length : 0; }

  const ClassifyOptions& o_;
  std::optional<KnownClasses> known_;
  ClassData data_;
  nlohmann::ordered_json by_class_;
};

}  // namespace

int classify(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_classify(args, out);
  return options ? run_job<ClassifyJob>(*options, result_file(*options), out, err) : 0;
}

}  // namespace tessera::tasks
