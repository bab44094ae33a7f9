#include "tasks/side_by_side.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>

#include "hub/model_folder.h"
#include "tasks/find_non_finite.h"
#include "tasks/same_snapshot.h"
#include "tessera/base/error.h"
#include "train/side_by_side_optimizer.h"

namespace tessera::tasks {

SideBySideTrainable::SideBySideTrainable(models::Model& model, const peft::SeveralAdapters& adapters,
                                         std::vector<AdapterRun>& runs, comm::Communicator& group)
    : model_(model),
      adapters_(adapters),
      runs_(runs),
      group_(group),
      accumulation_(runs[0].options.gradient_accumulation_steps),
      losses_(runs.size()),
      took_(runs.size()) {
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (runs[i].steps > longest().steps) longest_ = i;
}

SideBySideTrainable::Place SideBySideTrainable::place_of(const AdapterRun& run, std::int64_t epoch,
                                                         std::int64_t batch) const {
  const auto step = epoch * longest().steps_per_epoch + batch / accumulation_;
  if (step >= run.steps) return {};
  Place place;
  place.epoch = step / run.steps_per_epoch;
  place.first = step % run.steps_per_epoch * accumulation_;
  place.batches = std::min(accumulation_, run.rows->batches_per_epoch() - place.first);
  const auto before = accumulation_ - place.batches, now = batch % accumulation_;
  if (now >= before) place.batch = place.first + now - before;
  return place;
}

at::Tensor SideBySideTrainable::loss(std::int64_t epoch, std::int64_t batch, double) {
  epoch_ = epoch;
  models::ModelInput in;
  std::vector<int> numbers;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const auto place = place_of(runs_[i], epoch, batch);
    if (place.batch < 0) continue;
    double tokens = 0;
    for (std::int64_t b = 0; b < place.batches; ++b) tokens += runs_[i].rows->loss_tokens(place.epoch, place.first + b);
    in.parts.push_back(runs_[i].rows->input(place.epoch, place.batch, std::max(tokens, 1.0)));
    in.parts.back().seed = runs_[i].seed;
    numbers.push_back(static_cast<int>(i));
  }
  if (numbers.empty()) return at::zeros({}).set_requires_grad(true);  // the step's other batches have all rows
  adapters_.use_for_parts(numbers);
  const auto out = model_(std::move(in));
  for (std::size_t p = 0; p < numbers.size(); ++p) {
    const auto run = static_cast<std::size_t>(numbers[p]);
    losses_[run] += out.part_losses[p].item<double>();
    took_[run] = true;
  }
  return out.loss;
}

std::int64_t SideBySideTrainable::input_tokens(std::int64_t epoch, std::int64_t batch) {
  std::int64_t tokens = 0;
  for (const auto& run : runs_)
    if (const auto place = place_of(run, epoch, batch); place.batch >= 0)
      tokens += run.rows->input_tokens(place.epoch, place.batch);
  return tokens;
}

std::int64_t SideBySideTrainable::rows(std::int64_t batch) const {
  std::int64_t rows = 0;
  for (const auto& run : runs_)
    if (const auto place = place_of(run, epoch_, batch); place.batch >= 0) rows += run.rows->rows(place.batch);
  return rows;
}

std::string SideBySideTrainable::find_non_finite(std::int64_t epoch, std::int64_t batch) {
  return tasks::find_non_finite(model_, [&] { (void)loss(epoch, batch, 1.0); });
}

train::Metrics SideBySideTrainable::take_losses() {
  const auto sums = train::sum_over_ranks(group_, losses_);
  train::Metrics metrics;
  for (std::size_t i = 0; i < runs_.size(); ++i)
    if (took_[i]) metrics.emplace_back(runs_[i].name + "_loss", sums[i]);
  losses_.assign(runs_.size(), 0);
  took_.assign(runs_.size(), false);
  return metrics;
}

namespace {

class SideBySideJob final : public TrainingJob {
 public:
  SideBySideJob(const SftOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
                std::ostream& err)
      : TrainingJob(options, models::ModelKind::kCausal, std::move(group), out, err), o_(options) {
    arguments_.max_grad_norm = 0;  // each adapter's gradients are clipped by themselves
  }

 private:
  struct Adapter {
    std::string name, folder;  // it goes on from; empty: a new one
    const SftOptions& options;
    SftRows rows = {};
  };

  void load_data() override {
    for (const auto& [name, options] : o_.side_by_side) {
      Adapter adapter{name, hub::find_adapter(options->adapter.adapter_name_or_path), *options};
      require_same_snapshot({adapter.folder}, *group_);
      const auto& own = options->tokenizer_name_or_path;
      const auto tokenizer =
          own.empty() ? checkpoint::tokenizer_among({adapter.folder, folder_}) : hub::find_settings(own);
      std::vector<std::string> notes;
      adapter.rows = load_sft_rows(*options, tokenizer, *group_, notes);
      for (const auto& note : notes) notes_.push_back("adapter '" + name + "': " + note);
      if (adapter.rows.opened.min_vocab_size > 0)
        throw ConfigError("adapter '" + name +
                              "': its chat template brings new tokens, whose rows of the token table " +
                              "adapters side by side would have to share; train it by itself",
                          "adapters");
      require_second_split(adapter.rows.splits.eval != nullptr, options->data);
      adapters_.push_back(std::move(adapter));
    }
    tokenizer_ = adapters_[0].rows.opened.tokenizer;
  }

  std::vector<PreparedRows> prepared() const override {
    std::vector<PreparedRows> all;
    for (const auto& adapter : adapters_) {
      for (auto& rows : prepared_rows(adapter.rows.splits.train.get(), adapter.rows.splits.eval.get())) {
        rows.use = adapter.name + "'s " + rows.use;
        all.push_back(std::move(rows));
      }
    }
    return all;
  }

  void complete(AssembleOptions& options) const override {
    options.attn_implementation = o_.attn_implementation;
    options.method = nullptr;
    options.adapter_folder.clear();
    options.train_several = peft::Training::kAll;
    for (const auto& adapter : adapters_)
      options.several.push_back({adapter.name, adapter.folder,
                                 new_adapter(adapter.options.adapter, "CAUSAL_LM", o_.model_name_or_path),
                                 static_cast<std::uint64_t>(adapter.options.training.seed)});
  }

  void check_model() override {
    for (const auto& adapter : adapters_) adapter.rows.check(model_.config);
    weigh_balance(o_, *model_.model);
  }

  std::int64_t longest_row() const override {
    std::int64_t longest = 0;
    for (const auto& adapter : adapters_) longest = std::max(longest, adapter.rows.longest());
    return longest;
  }
  std::int64_t rows_of_a_batch() const override {
    std::int64_t rows = 0;
    for (const auto& adapter : adapters_) rows += adapter.options.training.per_device_train_batch_size;
    return rows;
  }

  std::unique_ptr<train::Trainable> trainable() override {
    for (const auto& adapter : adapters_) {
      const auto& training = adapter.options.training;
      AdapterRun run{adapter.name, training.trainer_options(), static_cast<std::uint64_t>(training.seed), nullptr};
      run.rows = std::make_unique<SftTrainable>(*model_.model, *adapter.rows.splits.train, adapter.rows.collate,
                                                training, *group_);
      run.steps_per_epoch = train::steps_per_epoch(run.options, run.rows->batches_per_epoch());
      run.steps = train::total_steps(run.options, run.rows->batches_per_epoch());
      runs_.push_back(std::move(run));
    }
    auto task = std::make_unique<SideBySideTrainable>(*model_.model, *model_.several, runs_, *group_);
    arguments_.max_steps = task->steps();
    trainable_ = task.get();
    return task;
  }

  std::unique_ptr<optim::Optimizer> optimizer() override {
    std::vector<train::SideBySideOptimizer::Part> parts;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      std::map<std::string, std::string> own_names;
      std::set<std::string> names;
      for (const auto& [own, name] : model_.several->members()[i].names) {
        own_names[name] = own;
        names.insert(name);
      }
      const auto& run = runs_[i];
      parts.push_back({train::make_optimizer(adapters_[i].options.training, *model_.model, *model_.sharded, &own_names),
                       names, train::make_schedule(run.options, run.steps), run.options.max_grad_norm, run.steps});
    }
    auto all = std::make_unique<train::SideBySideOptimizer>(*model_.sharded, std::move(parts));
    optimizer_ = all.get();
    return all;
  }

  train::SessionTask session_task() override {
    train::SessionTask task;
    for (const auto& adapter : adapters_) {
      const auto& splits = adapter.rows.splits;
      task.num_examples += splits.train->size();
      if (splits.eval) task.num_eval_examples += splits.eval->size();
    }
    task.flops_per_token = flops_per_token(*model_.model);
    task.evaluate = [this](const report::BarStyle& bars) { return evaluate_all(bars); };
    task.has_one_rate = false;
    task.batch_metrics = [this] {
      auto metrics = trainable_->take_losses();
      for (std::size_t i = 0; i < runs_.size(); ++i) {
        const auto& part = optimizer_->parts()[i];
        if (optimizer_->steps() > part.steps) continue;
        if (part.max_grad_norm > 0) metrics.emplace_back(runs_[i].name + "_grad_norm", part.grad_norm);
        metrics.emplace_back(runs_[i].name + "_learning_rate", part.optimizer->lr());
      }
      return std::vector<train::Metrics>{metrics};
    };
    return task;
  }

  /// Each adapter's own, and their means.
  train::Metrics evaluate_all(const report::BarStyle& bars) {
    train::Metrics all, means;
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
      const auto& adapter = adapters_[i];
      model_.several->use(static_cast<int>(i));
      for (const auto& [name, value] : evaluate(*model_.model, *adapter.rows.splits.eval, adapter.rows.collate,
                                                adapter.options.training, *group_, bars, err_)) {
        all.emplace_back("eval_" + adapter.name + name.substr(4), value);
        const auto is_same = [&, key = name](const auto& mean) { return mean.first == key; };
        auto mean = std::find_if(means.begin(), means.end(), is_same);
        if (mean == means.end()) mean = means.insert(mean, {name, 0});
        mean->second += value / static_cast<double>(adapters_.size());
      }
    }
    model_.several->use(peft::kBaseModel);
    means.insert(means.end(), all.begin(), all.end());
    return means;
  }

  void save(const std::string& folder, checkpoint::SaveQueue* queue) override {
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
      const auto& adapter = adapters_[i];
      save_member(model_, model_.several->members()[i],
                  {folder_, adapter.rows.opened.tokenizer, adapter.rows.tokenizer_path, arguments_.save_dtype},
                  folder + "/" + adapter.name, queue);
    }
  }

  void save_result() override {
    save(arguments_.output_dir, nullptr);
    for (const auto& adapter : adapters_)
      out_ << "adapter saved in " << arguments_.output_dir << "/" << adapter.name << "\n";
    out_ << std::flush;
  }

  const SftOptions& o_;
  std::vector<Adapter> adapters_;
  std::vector<AdapterRun> runs_;
  SideBySideTrainable* trainable_ = nullptr;
  train::SideBySideOptimizer* optimizer_ = nullptr;
};

}  // namespace

int train_side_by_side(const SftOptions& options, std::ostream& out, std::ostream& err) {
  std::string result;
  if (options.save_model)
    result = options.training.output_dir + "/" + options.side_by_side[0].name + "/adapter_model.safetensors";
  return run_job<SideBySideJob>(options, result, out, err);
}

}  // namespace tessera::tasks
