#include "tasks/sft.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "families/model_folder.h"
#include "models/causal_lm.h"
#include "tasks/answer_samples.h"
#include "tasks/assemble.h"
#include "tasks/fsdp_options.h"
#include "tasks/job.h"
#include "tasks/sft_training.h"
#include "tasks/training_tokenizer.h"
#include "tessera/base/error.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/packed_weight.h"
#include "tessera/tensor/random.h"

namespace tessera::tasks {
namespace {

AssembleOptions assemble_options(const SftOptions& o, const std::string& folder) {
  AssembleOptions a;
  a.model_folder = folder;
  a.adapter_folder = o.adapter.adapter_name_or_path;
  a.attn_implementation = o.attn_implementation;
  a.seed = static_cast<std::uint64_t>(o.training.seed);
  a.quantization = o.quant.quantization();
  a.method = new_adapter(o.adapter, "CAUSAL_LM", o.model_name_or_path);
  config::AccelerateConfig launch = launch_settings(o.training.bf16, o.training.fp16);
  launch.fsdp.activation_checkpointing = launch.fsdp.activation_checkpointing || o.training.gradient_checkpointing;
  a.fsdp = fsdp_options(launch);
  a.fsdp.device = compute_device(o.training.device, launch);
  a.fsdp.gather = o.gather;
  return a;
}

std::string result_file(const SftOptions& o) {
  if (!o.save_model || !o.training.do_train) return {};
  return o.training.output_dir + (o.adapter.use_peft_lora ? "/adapter_model.safetensors" : "/model.safetensors");
}

/// Forward, the inputs' gradients and the trained weights' gradients of every matrix, 2 operations each; a table that
/// is only looked up costs nothing.
double flops_per_token(models::Model& model) {
  double matrices = 0, trained = 0, tables = 0;
  bool has_head = false;
  const nn::DenseElements elements(model);
  for (const auto& item : model.named_parameters()) {
    if (item.value().dim() < 2) continue;
    const auto numel = static_cast<double>(elements.of(item.key(), item.value()));
    matrices += numel;
    if (item.value().requires_grad()) trained += numel;
    has_head = has_head || item.key().starts_with("lm_head") || item.key().starts_with("embed_out");
  }
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* table = dynamic_cast<nn::Embedding*>(module.get())) tables += static_cast<double>(table->weight.numel());
  }
  return 4 * (matrices - (has_head ? tables : 0)) + 2 * trained;
}

/// The whole job on one rank. `out` is rank 0's standard output, nothing elsewhere.
class SftJob {
 public:
  SftJob(const SftOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out, std::ostream& err)
      : o_(options),
        group_(std::move(group)),
        out_(out),
        err_(err),
        notes_(o_.notes),
        folder_(families::find_model_folder(o_.model_name_or_path)),
        tokenizer_path_(o_.tokenizer_name_or_path.empty()
                            ? checkpoint::tokenizer_among({o_.adapter.adapter_name_or_path, folder_})
                            : o_.tokenizer_name_or_path) {}

  /// False when it was interrupted.
  bool run() {
    const auto seed = static_cast<std::uint64_t>(o_.training.seed);
    manual_seed(seed);  // draws differ by row, not by rank
    AssembleOptions options = assemble_options(o_, folder_);
    load_data();
    options.min_vocab_size = tokenizer_.min_vocab_size;
    compute_dtype_ = options.fsdp.precision.param_dtype.value_or(at::kFloat);
    model_ = assemble(options, group_);
    if (model_.config.kind != models::ModelKind::kCausal) {
      throw ConfigError("'" + folder_ + "' holds a " + model_.config.model_type +
                            ", not a causal language model; tessera seq2seq trains encoder-decoder models",
                        "model_name_or_path");
    }
    if (model_.config.quantization && !model_.adapters && o_.training.do_train) {
      throw ConfigError("the weights of '" + folder_ +
                            "' are packed in 4 bits, which do not train; train an adapter over them: --use_peft_lora",
                        "use_peft_lora");
    }
    dynamic_cast<models::CausalLm&>(*model_.model).set_token_loss(o_.training.token_loss);
    check_tokenizer();
    describe();
    const bool finished = o_.training.do_train ? train() : evaluate_only();
    tasks::report_memory(*group_, out_);
    return finished;
  }

 private:
  void load_data() {
    tokenizer_ = open_training_tokenizer(o_, tokenizer_path_);
    std::vector<std::string> notes;
    data::SftDataOptions options = data_options();
    if (!o_.training.do_train) {
      options.most_rows = 1;  // none are trained on
    } else if (o_.dataset_streaming) {
      const auto& t = o_.training;
      options.most_rows = t.max_steps * t.gradient_accumulation_steps * t.per_device_train_batch_size * group_->size();
    }
    splits_ = data::load_sft_data(options, tokenizer_.tokenizer, notes);
    for (auto& note : notes) notes_.push_back(std::move(note));
    collate_.pad_id = tokenizer_.tokenizer->pad_id();
    collate_.pad_to_multiple_of = o_.pad_to_multiple_of;
    collate_.padding_free = o_.padding_free;
    if (!splits_.eval && (o_.training.eval_strategy != train::Interval::kNo || o_.training.eval_on_start)) {
      throw ConfigError("--eval_strategy, --eval_on_start or --do_train false asks for evaluations, but '" +
                            o_.data.dataset_name + "' has no second split (--splits '" + o_.data.splits +
                            "'); add one, or leave them out",
                        "eval_strategy");
    }
  }

  data::SftDataOptions data_options() const {
    data::SftDataOptions options = o_.data;
    options.template_place = tokenizer_.template_place;
    return options;
  }

  void check_tokenizer() {
    const auto tokens = tokenizer_.tokenizer->vocab_size();
    if (tokens <= model_.config.vocab_size) return;
    throw DataError(
        fmt::format("the tokenizer '{}' has {} tokens, the model's table {} rows: they do not belong together",
                    tokenizer_path_, tokens, model_.config.vocab_size),
        tokenizer_path_);
  }

  void describe() {
    tasks::describe(model_, o_.print_model, out_);
    for (const auto& note : notes_) out_ << note << "\n";
  }

  bool train() {
    SftTrainable task(*model_.model, *splits_.train, collate_, o_.training, *group_);
    const auto optimizer = train::make_optimizer(o_.training, *model_.sharded);
    train::TrainerOptions options = o_.training.trainer_options();
    options.scale_loss = o_.scale_loss;
    train::Trainer trainer(options, task, *model_.sharded, *optimizer);
    train::SessionTask session_task = evaluation_task();
    session_task.num_examples = splits_.train->size();
    session_task.trainable_parameters = model_.trainable;
    session_task.compute_dtype = compute_dtype_;
    session_task.flops_per_token = flops_per_token(*model_.model);
    session_task.checkpoints.save_model = [this](const std::string& folder, checkpoint::SaveQueue& queue) {
      save(folder, &queue);
    };
    session_task.checkpoints.torch_optimizer = {.beta1 = o_.training.adam_beta1,
                                                .beta2 = o_.training.adam_beta2,
                                                .eps = o_.training.adam_epsilon,
                                                .weight_decay = o_.training.weight_decay,
                                                .decays = train::decays};
    set_torch_state(model_, session_task.checkpoints);
    train::Session session(o_.training, session_task, trainer, *model_.sharded, *optimizer, out_, err_);
    const bool finished = session.run();
    if (finished && o_.save_model) save_result();  // while the session holds the folder
    return finished;
  }

  bool evaluate_only() {
    train::evaluate_only(o_.training, evaluation_task(), *group_, out_);
    return true;
  }

  train::SessionTask evaluation_task() {
    train::SessionTask task;
    task.evaluate = [this](const report::BarStyle& bars) {
      return evaluate(*model_.model, *splits_.eval, collate_, o_.training, *group_, bars, err_);
    };
    if (o_.eval_generate > 0) {
      const auto samples = data::first_samples(data_options(), tokenizer_.tokenizer, o_.eval_generate);
      task.samples = [this, samples] { return show_answers(samples); };
    }
    return task;
  }

  nlohmann::ordered_json show_answers(const std::vector<data::SftSample>& samples) {
    auto settings = models::read_generation_config(folder_, model_.config);
    settings.do_sample = false;
    settings.max_new_tokens = o_.eval_generate_max_new_tokens;
    const auto& eos = tokenizer_.tokenizer->eos_id();
    if (eos >= 0) settings.eos_token_ids = {eos};
    settings.pad_token_id = collate_.pad_id;
    return answer_samples(*model_.model, *tokenizer_.tokenizer, samples, settings,
                          o_.training.per_device_eval_batch_size, out_);
  }

  void save(const std::string& folder, checkpoint::SaveQueue* queue = nullptr) {
    save_trained(model_, {folder_, tokenizer_.tokenizer, tokenizer_path_, o_.training.save_dtype}, folder, queue);
  }

  void save_result() {
    const std::string& folder = o_.training.output_dir;
    save(folder);
    out_ << saved_line(model_, folder) << upload_hint(o_.upload, folder) << std::flush;
  }

  const SftOptions& o_;
  std::shared_ptr<comm::Communicator> group_;
  std::ostream& out_;
  std::ostream& err_;
  std::vector<std::string> notes_;
  std::string folder_, tokenizer_path_;
  TrainingTokenizer tokenizer_;
  data::SftSplits splits_;
  data::SftCollateOptions collate_;
  Assembled model_;
  at::ScalarType compute_dtype_ = at::kFloat;
};

}  // namespace

int sft(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_sft(args, out);
  if (!options) return 0;
  train::prepare_output(options->training, result_file(*options));
  auto group = comm::connect();
  std::ostringstream nowhere;
  const bool finished = SftJob(*options, group, group->rank() == 0 ? out : nowhere, err).run();
  group->barrier();
  return finished ? 0 : interrupted_exit_code(*group);
}

}  // namespace tessera::tasks
