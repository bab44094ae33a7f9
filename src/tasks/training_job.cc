#include "tasks/training_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "base/folder_names.h"
#include "base/open_file.h"
#include "base/rank_record.h"
#include "base/rounded.h"
#include "checkpoint/checkpoint_folder.h"
#include "families/classifier.h"
#include "families/config_reader.h"
#include "families/families.h"
#include "fsdp/plan/wrap_classes.h"
#include "hub/model_folder.h"
#include "models/gguf_model.h"
#include "peft/adapter_config.h"
#include "tasks/eva_start.h"
#include "tasks/fsdp_options.h"
#include "tasks/positions_note.h"
#include "tasks/same_snapshot.h"
#include "tessera/base/error.h"
#include "tessera/tensor/random.h"
#include "train/lora_fa_projections.h"
#include "train/method_optimizer.h"
#include "train/rank_allocation.h"
#include "train/results.h"

namespace tessera::tasks {
namespace {

/// A checkpoint of the run that is gone on with; empty: it begins anew.
std::string adapter_to_go_on_with(const train::TrainingArguments& a) {
  if (!a.is_resumed()) return "";
  if (!a.takes_newest()) return a.resume_from_checkpoint;
  const auto all = checkpoint::list_checkpoints(a.output_dir);
  const auto has_adapter = [](const auto& c) { return is_there(c.path + "/adapter_config.json"); };
  const auto newest = std::find_if(all.rbegin(), all.rend(), has_adapter);
  return newest == all.rend() ? "" : newest->path;
}

struct KindWords {
  models::ModelKind kind;
  const char* what;
  const char* task_type;  // PEFT's
  const char* trained_by;
};
constexpr KindWords kKinds[] = {
    {models::ModelKind::kCausal, "a causal language model", "CAUSAL_LM", "tessera sft"},
    {models::ModelKind::kSeq2Seq, "an encoder-decoder model", "SEQ_2_SEQ_LM", "tessera seq2seq"},
    {models::ModelKind::kSequenceClassification, "a classifier", "SEQ_CLS", "tessera classify"},
    {models::ModelKind::kMaskedLm, "a masked language model", "", nullptr},
};
const KindWords& words_of(models::ModelKind kind) {
  for (const auto& words : kKinds)
    if (words.kind == kind) return words;
  throw Error("a kind of model without a name");
}

/// By config.json. A classifier can be made of any model but T5.
void check_kind(const std::string& folder, models::ModelKind wanted) {
  const auto json = models::read_model_config(folder);
  const families::ConfigReader in(json, folder + "/config.json");
  const auto described = families::parse_config(json, folder + "/config.json");
  const auto kind = std::holds_alternative<families::T5Config>(described) ? models::ModelKind::kSeq2Seq
                    : families::is_classifier(in)                         ? models::ModelKind::kSequenceClassification
                    : std::holds_alternative<families::BertConfig>(described) ? models::ModelKind::kMaskedLm
                                                                              : models::ModelKind::kCausal;
  const bool can_be = wanted == models::ModelKind::kSequenceClassification && kind != models::ModelKind::kSeq2Seq;
  if (kind == wanted || can_be) return;
  const auto& found = words_of(kind);
  throw ConfigError(
      fmt::format("'{}' holds a {}, which is {}, not {}{}", folder, in.get<std::string>("model_type", ""), found.what,
                  words_of(wanted).what, found.trained_by ? fmt::format("; {} trains such", found.trained_by) : ""),
      "model_name_or_path");
}

}  // namespace

void add_job_flags(config::OptionTable& table, JobOptions& o, const char* group) {
  table.add(&o.print_model, {"--print_model"}, "print the sharded model before training; none: unless it is long",
            group);
  table.add(&o.save_model, {"--save_model"}, "save the adapter (or model) at the end", group);
  table.add(
      &o.max_memory, {"--max_memory"},
      "budget of a rank, \"20GiB\": a job that is planned over it is refused with the flags that would fit, one that "
      "goes over it ends with a checkpoint",
      group);
  table.add_enum(&o.gather, gather_forms(), {"--gather"}, "how sharded units become readable", group);
  add_upload_flags(table, o.upload, group);
}

void check_job(JobOptions& o, const config::OptionTable& table, const std::vector<std::string>& measured,
               config::Problems& problems) {
  o.command = table.command();
  o.given = table.given_values();
  train::check_training_arguments(o.training, table, problems);
  if (!measured.empty()) train::check_metric(o.training, measured, problems);
  if (o.training.train_sampling_strategy == train::SamplingStrategy::kGroupByLength)
    o.notes.push_back("--train_sampling_strategy group_by_length takes rows in random order, whatever their lengths");
  check_lora_flags(o.adapter, problems);
  check_quant_flags(o.quant, o.adapter.use_peft_lora || !o.training.do_train, problems);
  problems.require(o.adapter.use_peft_lora || (!o.adapter.use_dora && o.adapter.lora_modules_to_save.empty()),
                   "--use_dora and --lora_modules_to_save need --use_peft_lora true", "use_peft_lora");
  problems.attempt([&] { (void)budget_bytes(o.max_memory); });
  problems.attempt(config::Problems::Source::kHost, [&] {
    (void)compute_device(o.training.wanted_device(), launch_settings(o.training.bf16, o.training.fp16));
  });
  for (auto& note : table.notes()) o.notes.push_back(std::move(note));
}

train::Metrics timed_metrics(train::Metrics measured, double seconds, std::int64_t rows, std::int64_t batches,
                             const std::string& prefix) {
  measured.emplace_back(prefix + "_runtime", rounded(seconds, 4));
  measured.emplace_back(prefix + "_samples_per_second", rounded(static_cast<double>(rows) / seconds, 3));
  measured.emplace_back(prefix + "_steps_per_second", rounded(static_cast<double>(batches) / seconds, 3));
  return measured;
}

std::string result_file(const JobOptions& o) {
  if (!o.save_model || !o.training.do_train) return {};
  return o.training.output_dir + (o.adapter.use_peft_lora ? "/adapter_model.safetensors" : "/model.safetensors");
}

void note_folder(comm::Communicator& group, const std::string& output_dir) {
  RankRecord* record = group.record();
  if (record == nullptr) return;
  record->folder.store(folder_mark(output_dir));
  record->phase.set("preparing data and model");
}

TrainingJob::TrainingJob(const JobOptions& options, models::ModelKind kind, std::shared_ptr<comm::Communicator> group,
                         std::ostream& out, std::ostream& err)
    : kind_(kind),
      group_(std::move(group)),
      out_(out),
      err_(err),
      arguments_(options.training),
      notes_(options.notes),
      folder_(hub::find_model_folder(options.model_name_or_path)),
      adapter_folder_(hub::find_adapter(options.adapter.adapter_name_or_path)),
      tokenizer_path_(options.tokenizer_name_or_path.empty() ? checkpoint::tokenizer_among({adapter_folder_, folder_})
                                                             : hub::find_settings(options.tokenizer_name_or_path)),
      options_(options),
      uploads_(options_.upload, arguments_, out_) {}

bool TrainingJob::run() {
  manual_seed(static_cast<std::uint64_t>(arguments_.seed));  // draws differ by row, not by rank
  device_ = training_device(arguments_, launch(), *group_);  // refused before anything is read
  require_same_snapshot({folder_, adapter_folder_}, *group_);
  check_kind(folder_, kind_);  // before rows are read
  load_data();
  require_same_data(prepared(), {arguments_.seed, arguments_.data_seed.value_or(arguments_.seed)}, *tokenizer_,
                    *group_);
  assemble_model();
  check_model();
  if (group_->rank() == 0 && kind_ == models::ModelKind::kCausal && arguments_.do_train)
    err_ << positions_note(model_.config, "the longest row has", longest_row());
  describe(model_, options_.print_model, out_);
  for (const auto& note : notes_) out_ << note << "\n";
  bool finished = true;
  if (arguments_.do_train)
    finished = train();
  else if (evaluates_alone())
    train::evaluate_only(arguments_, session_task(), *group_, out_);
  if (finished) predict();
  if (reports_memory()) report_memory(*group_, out_);
  return finished;
}

config::AccelerateConfig TrainingJob::launch() {
  return launch_settings(arguments_.bf16, arguments_.fp16);
}

void TrainingJob::assemble_model() {
  config::AccelerateConfig settings = launch();
  scale_loss_ = settings.mixed_precision == config::MixedPrecision::kFp16;
  const bool wraps = settings.fsdp.auto_wrap_policy != config::WrapPolicy::kNoWrap;
  const auto [every_n_layers, offload] = train::checkpointing_kwargs(arguments_);
  const bool recomputes = arguments_.gradient_checkpointing;
  require_option(
      !(recomputes && offload) || device_.is_cpu(),
      "\"offload\" of --gradient_checkpointing_kwargs: activations stay on the device that computes; leave it out",
      "gradient_checkpointing_kwargs");
  require_option(!(recomputes && every_n_layers > 1 && settings.fsdp.activation_checkpointing),
                 "\"every_n_layers\" of --gradient_checkpointing_kwargs recomputes some blocks, and the launcher's "
                 "fsdp_activation_checkpointing all; leave one out",
                 "gradient_checkpointing_kwargs");
  const bool by_unit = wraps && every_n_layers == 1;
  if (recomputes && by_unit) settings.fsdp.activation_checkpointing = true;
  AssembleOptions a;
  a.recompute_every = recomputes && !by_unit ? every_n_layers : 0;
  a.model_folder = folder_;
  a.adapter_folder = adapter_folder_;
  a.method = new_adapter(options_.adapter, words_of(kind_).task_type, options_.model_name_or_path);
  a.freeze_lora_a = arguments_.optim == train::kLoraFa;
  a.quantization = options_.quant.quantization();
  a.seed = static_cast<std::uint64_t>(arguments_.seed);
  a.fsdp = fsdp_options(settings);
  a.fsdp.device = device_;
  a.fsdp.gather = options_.gather;
  complete(a);
  if (arguments_.do_train)
    a.before_sharding = [this](const Assembled& model, const fsdp::FsdpOptions& fsdp) {
      const auto rows = prepared().front().count;  // to train
      require_invocations(*model.model, rows, [this](auto i) { return sequences(i); }, *tokenizer_, *group_, notes_);
      plan_memory(model, fsdp);
    };
  compute_dtype_ = a.fsdp.precision.param_dtype.value_or(at::kFloat);
  const auto begun = begin_with_rows(a);
  model_ = assemble(a, group_);
  notes_.insert(notes_.end(), model_.notes.begin(), model_.notes.end());
  if (!begun.empty()) checkpoint::write_values(*model_.sharded, begun);
  if (model_.config.quantization && !model_.adapters && !model_.several && arguments_.do_train) {
    throw ConfigError("the weights of '" + folder_ + "' are packed in " +
                          families::form_name(model_.config.quantization->form) +
                          ", which do not train; train an adapter over them: --use_peft_lora",
                      "use_peft_lora");
  }
  model_.model->set_token_loss(arguments_.token_loss);
}

peft::Values TrainingJob::begin_with_rows(AssembleOptions& options) {
  if (!options.adapter_folder.empty() || !asks_for_eva(options.method)) return {};
  if (!arguments_.do_train)
    throw ConfigError(
        "init_lora_weights eva begins with what layers see of training rows, and --do_train false has none; evaluate "
        "an adapter that is there with --adapter_name_or_path",
        "init_lora_weights");
  if (kind_ == models::ModelKind::kSeq2Seq)
    throw ConfigError(
        "init_lora_weights eva is for decoders and classifiers; an encoder-decoder model begins with "
        "another value, gaussian or pissa",
        "init_lora_weights");
  if (const auto known = adapter_to_go_on_with(arguments_); !known.empty()) {
    options.method = peft::read_adapter_config(known);  // with the ranks that the run began with
    return {};
  }
  AssembleOptions base = options;
  base.method = nullptr;
  base.freeze_lora_a = false;
  base.before_sharding = nullptr;
  model_ = assemble(base, group_);
  const auto notes = notes_.size();
  check_model();
  notes_.resize(notes);  // said again of the model that trains
  auto start = find_eva_start(model_, options, *shown_rows(), *group_);
  model_.sharded.reset();
  model_ = Assembled{};
  notes_.push_back(start.line);
  options.method = start.method;
  return start.values;
}

void TrainingJob::plan_memory(const Assembled& model, const fsdp::FsdpOptions& fsdp) {
  const estimate::BatchShape batch{
      .rows = rows_of_a_batch(),
      .length = longest_row(),
      .accumulation =
          estimate::accumulation_of(arguments_.gradient_accumulation_steps, arguments_.sync_each_batch, group_->size()),
      .encoder_length = longest_source()};
  const PlanSettings planned{.model_folder = folder_,
                             .optim = arguments_.optim,
                             .optim_args = arguments_.optim_args,
                             .optim_target_modules = arguments_.optim_target_modules,
                             .batch = batch};
  plan_ = plan_rank(model, fsdp, planned, *group_);
  device_plan_ = plan_device(model, fsdp, planned, *group_);
  const auto settings = launch();
  estimate::PlanRequest request;
  if (model.adapters || model.several) {
    const auto& flags = options_.adapter;
    // Remedies count LoRA for every method.
    request.adapter = estimate::AdapterRequest{.lora_r = flags.lora_r};
  }
  if (options_.quant.load_in_4bit) request.packed = {.bits = 4, .double_quant = options_.quant.settings.double_quant};
  if (options_.quant.load_in_8bit) request.packed = {.bits = 8};
  request.strategy = settings.fsdp.sharding_strategy;
  request.ranks = group_->size();
  request.hosts = hosts_of(*group_);
  request.mixed_precision = config::name_of(settings.mixed_precision);
  request.optim = arguments_.optim;
  request.optim_args = arguments_.optim_args;
  request.optim_target_modules = arguments_.optim_target_modules;
  request.batch = batch;
  if (!device_.is_cpu()) request.batch.length = 0;  // activations are there
  request.batch.checkpointing = fsdp::recomputed_every(fsdp.activation_checkpointing);
  request.on_disk = !fsdp.offload_folder.empty();
  require_fit(plan_, request, folder_, options_.max_memory);
}

std::unique_ptr<optim::Optimizer> TrainingJob::optimizer() {
  return train::with_method(train::make_optimizer(arguments_, *model_.model, *model_.sharded), *model_.sharded,
                            model_.adapters ? model_.adapters->method.get() : nullptr);
}

void TrainingJob::say_where_state_is(optim::Optimizer& optimizer) {
  const auto& parameters = optimizer.parameters();
  const bool here = std::all_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.is_cpu(); });
  const auto& name = arguments_.optim;
  if (&optimizer.computing() != &optimizer)
    out_ << "  --optim " << name << ": it computes on the CPU and keeps its states in the host's memory; gradients and "
         << "parameters are copied there and back in every step\n";
  else if (name.starts_with("paged_") && !here)
    out_ << "  --optim " << name
         << ": its states stay in the GPU's memory; fsdp_offload_params: true keeps them in the "
         << "host's\n";
  else if (name.starts_with("paged_") && launch().fsdp.offload_folder.empty())
    out_ << "  --optim " << name << ": its states stay in memory, as upstream's do without a GPU; "
         << "--fsdp_offload_folder FOLDER of the launcher pages them to a disk\n";
}

bool TrainingJob::train() {
  const auto task = trainable();
  const auto optimizer = this->optimizer();
  say_where_state_is(*optimizer);
  train::TrainerOptions options = arguments_.trainer_options();
  options.scale_loss = scale_loss_;
  train::Trainer trainer(options, *task, *model_.sharded, *optimizer);
  train::set_total_steps(*optimizer, trainer.total_steps());
  train::SessionTask session_task = this->session_task();
  session_task.trainable_parameters = model_.trainable;
  session_task.compute_dtype = compute_dtype_;
  session_task.checkpoints.save_model = [this](const std::string& folder, checkpoint::SaveQueue& queue) {
    save(folder, &queue);
  };
  session_task.checkpoints.room_for_copies = [this] { return room_for_copies(plan_, options_.max_memory, *group_); };
  session_task.checkpoints.torch_optimizer = {.beta1 = arguments_.adam_beta1,
                                              .beta2 = arguments_.adam_beta2,
                                              .eps = arguments_.adam_epsilon,
                                              .weight_decay = arguments_.weight_decay};
  session_task.checkpoints.saved = [this](const std::string& folder) { uploads_.push_checkpoint(folder); };
  if (!arguments_.decays_all) session_task.checkpoints.torch_optimizer.decays = train::DecayByModule(*model_.model);
  set_torch_state(model_, session_task.checkpoints);
  report::MemoryWatch watch(budget_bytes(options_.max_memory), mean_of_files(*group_));
  session_task.memory = &watch;
  session_task.planned_bytes = plan_.held();
  session_task.device = device_;
  session_task.planned_device_bytes = device_plan_.total();
  session_task.settings = settings();
  if (options_.save_model) session_task.save_result = [this] { save_result(); };
  train::Session session(arguments_, session_task, {trainer, *model_.sharded, *optimizer}, out_, err_);
  const bool finished = session.run();
  if (!finished) require_kept(plan_, watch, options_.max_memory, *group_);
  if (finished) {  // while the session holds the folder
    if (group_->rank() == 0) write_results(session.state(), session_task);
    if (options_.save_model && group_->rank() == 0) uploads_.push_result();
  }
  if (finished && reports_memory()) {
    report_plan(plan_, session.copied_for_saves(), watch.peak(), *group_, out_);
    report_device_plan(device_plan_, device_, *group_, out_);
  }
  return finished;
}

void TrainingJob::write_results(const train::TrainerState& state, const train::SessionTask& task) {
  const auto leave = [&](const char* split, const nlohmann::json& metrics) {
    train::save_metrics(arguments_.output_dir, split, metrics);
    if (!task.presentation) out_ << train::metrics_block(split, metrics) << std::flush;
  };
  leave("train", train::train_results(state, task.num_examples));
  std::int64_t step = -1;
  if (arguments_.load_best_model_at_end)
    step = checkpoint_step(std::filesystem::path(state.best_model_checkpoint).filename().string());
  if (const auto metrics = train::eval_results(state, task.num_eval_examples, step); !metrics.is_null())
    leave("eval", metrics);
}

nlohmann::ordered_json TrainingJob::settings() {
  using Json = nlohmann::ordered_json;
  Json flags = Json::object(), launched = {{"num_processes", group_->size()}};
  for (const auto& [name, value] : options_.given) flags[name] = value;
  for (const auto& [name, value] : config::settings_of(launch())) launched[name] = value;
  const auto mib_of = [](const estimate::RankPlan& plan) {
    Json parts = Json::object();
    for (const auto& part : plan.parts) {
      const double mib = rounded(static_cast<double>(part.bytes) / (1 << 20), 1);
      parts[part.what] = mib;
    }
    return parts;
  };
  auto planned = mib_of(plan_);
  planned["the program"] = rounded(static_cast<double>(plan_.program) / (1 << 20), 1);
  Json settings = {{"command", options_.command},
                   {"flags", std::move(flags)},
                   {"launch", std::move(launched)},
                   {"planned_memory_mib", std::move(planned)},
                   {"preparation_seconds", rounded(train::seconds_since(started_), 4)}};
  if (!device_plan_.parts.empty()) settings["planned_device_mib"] = mib_of(device_plan_);
  return settings;
}

void TrainingJob::save(const std::string& folder, checkpoint::SaveQueue* queue) {
  save_trained(model_, {folder_, tokenizer_, tokenizer_path_, arguments_.save_dtype, classes_}, folder, queue);
}

void TrainingJob::require_rows_to_evaluate(std::int64_t rows, const std::string& missing) {
  if (rows > 0) return;
  if (const std::string& flag = arguments_.insists_on_evaluation; !flag.empty())
    throw ConfigError(flag + " asks for evaluations, but " + missing + ", or leave the flag out",
                      flag.substr(2, flag.find(' ') - 2));
  arguments_.eval_strategy = train::Interval::kNo;
}

void TrainingJob::require_second_split(bool there, const data::DatasetOptions& dataset) {
  require_rows_to_evaluate(there, dataset.called() + " has no second split " + dataset.remedy());
}

void TrainingJob::save_result() {
  save(arguments_.output_dir, nullptr);
  out_ << saved_line(model_, arguments_.output_dir) << std::flush;
}

}  // namespace tessera::tasks
