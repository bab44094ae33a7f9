#include "tasks/assemble.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "families/classifier.h"
#include "io/resized_source.h"
#include "models/check_sizes.h"
#include "models/gguf_model.h"
#include "models/names_in_files.h"
#include "models/pack_layers.h"
#include "peft/adapter_config.h"
#include "peft/adapter_files.h"
#include "peft/loftq/loftq_source.h"
#include "peft/methods/lora.h"
#include "peft/targets.h"
#include "tasks/adapter_classes.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"
#include "tessera/nn/packed_weight.h"
#include "train/lora_fa_projections.h"

namespace tessera::tasks {
namespace {

/// Values that the adapter's file keeps come from there, all others from the base model.
void read_adapter_first(fsdp::FsdpOptions& fsdp, const peft::AdapterFile& file) {
  fsdp.source = io::joined_source({file.source(), fsdp.source});
  fsdp.source_name = [file, base = std::move(fsdp.source_name)](const std::string& name) {
    const auto kept = file.source_name(name);
    return kept.empty() ? base(name) : kept;
  };
}

/// The weights with more rows where the model's tables have more than the file's. Returns the modules that grew.
std::vector<std::string> grow_tables(fsdp::FsdpOptions& fsdp, const models::Model& model, std::int64_t rows) {
  std::map<std::string, std::int64_t> grown;
  std::vector<std::string> modules;
  for (const auto& item : model.named_parameters()) {
    const std::string stored = fsdp.source_name(item.key());
    const io::TensorInfo* info = stored.empty() ? nullptr : fsdp.source->find(stored);
    if (info && !info->shape.empty() && item.value().size(0) == rows && info->shape[0] < rows) {
      grown[stored] = rows;
      modules.push_back(item.key().substr(0, item.key().rfind('.')));
    }
  }
  fsdp.source = io::resized_source(fsdp.source, std::move(grown));
  return modules;
}

/// An adapter teaches nothing to rows that begin as the mean of all others, unless it trains their table.
void note_frozen_rows(Assembled& a, const std::vector<std::string>& tables) {
  std::vector<std::string> frozen;
  const auto parameters = a.model->named_parameters();
  for (const auto& table : tables) {
    const auto trains = [&](const auto& item) {
      return item.value().requires_grad() && item.key().starts_with(table + ".");
    };
    if (std::none_of(parameters.begin(), parameters.end(), trains))
      frozen.push_back(table.substr(table.rfind('.') + 1));
  }
  if (!frozen.empty())
    a.notes.push_back(
        fmt::format("the rows of new tokens do not train with this adapter; --lora_modules_to_save {} "
                    "trains them",
                    fmt::join(frozen, ",")));
}

/// What the flags ask for is how the folder is packed, or it is not packed.
void check_packed_once(const models::ModelConfig& config, const AssembleOptions& options) {
  if (!options.quantization || !config.quantization || options.quantization->form == config.quantization->form) return;
  throw ConfigError("the weights of '" + options.model_folder + "' are packed already, in " +
                        families::form_name(config.quantization->form) + ", and cannot be packed in " +
                        families::form_name(options.quantization->form) +
                        "; leave the flag out, or name the folder of the model that they were made from",
                    "quantization");
}

/// Layers that train themselves stay dense.
void pack_layers(Assembled& a, const AssembleOptions& options, const peft::PeftMethod* method,
                 fsdp::FsdpOptions& fsdp) {
  const auto trains = [method](const std::string& layer) {
    return method && peft::is_saved(layer + ".weight", *method);
  };
  const auto& wanted = options.quantization ? options.quantization : a.config.quantization;  // or config.json alone
  const auto packed = std::dynamic_pointer_cast<const quant::PackedSource>(fsdp.source);
  // Of a packed folder its own, as in transformers. Mixed precision comes before it, as autocast does there.
  const auto& settings = a.config.quantization ? a.config.quantization : wanted;
  const auto compute = fsdp.precision.param_dtype || !settings ? std::nullopt : models::compute_dtype(*settings);
  const bool adapts = method || options.train_several == peft::Training::kAll;
  const bool is_base = adapts || (options.is_frozen && fsdp.device.is_cpu());
  const bool stays = packed && (!packed->is_also_dense() || (is_base && !wanted));
  if (packed) {
    if (!packed->is_also_dense()) check_packed_once(a.config, options);
    const auto is_dense = [&](const std::string& layer) {
      // On a GPU the loss would make all logits of a packed one.
      const bool is_fused_head = !fsdp.device.is_cpu() && packed->is_also_dense() && layer == a.config.output_embedding;
      return !stays || is_fused_head || trains(layer);
    };
    const auto left = models::unpacked_source(*a.model, packed, is_dense);
    models::pack_as_stored(*a.model, *left, compute);
    fsdp.source = left;
  }
  if (!stays && options.pack_dense && wanted) {
    if (packed)
      models::check_not_packed(*a.model, models::layers_to_pack(*a.model, a.config, *wanted), *packed,
                               options.model_folder);
    fsdp.source = models::pack_while_reading(*a.model, a.config, *wanted, fsdp.source,
                                             fsdp.precision.param_dtype.value_or(at::kFloat), trains, compute);
    a.config.quantization = wanted;
  }
}

bool is_of_head(const std::string& parameter) {
  return parameter.starts_with("score.") || parameter.starts_with("classifier.") ||
         parameter.starts_with("pre_classifier.") || parameter.starts_with("pooler.") ||
         parameter.find(".pooler.") != std::string::npos;
}

/// Weights of a classifier's head that the source lacks, or has for another number of labels, get the family's initial
/// values.
void begin_missing_head(Assembled& a, const AssembleOptions& options, fsdp::FsdpOptions& fsdp) {
  std::set<std::string> missing;
  const nn::DenseElements elements(*a.model);
  for (const auto& item : a.model->named_parameters()) {
    const bool packed = elements.of(item.key(), item.value()) != item.value().numel();  // a pooler that is there
    if (!is_of_head(item.key()) || packed) continue;
    const auto stored = fsdp.source_name(item.key());
    const auto* info = stored.empty() ? nullptr : fsdp.source->find(stored);
    if (!info || info->shape != item.value().sizes().vec()) missing.insert(item.key());
  }
  a.new_weights.assign(missing.begin(), missing.end());
  fsdp.source_name = [missing, stored = fsdp.source_name](const std::string& name) {
    return missing.contains(name) ? std::string() : stored(name);
  };
  fsdp.param_init_fn = [missing, model = a.model, seed = options.seed, others = std::move(fsdp.param_init_fn)](
                           const std::string& name, const at::Tensor& parameter) {
    if (!missing.contains(name)) return others ? others(name, parameter) : void();
    const auto values = parameter.detach();
    nn::allocate(values);
    model->init_parameter(name, values, tensor::named_key(seed, name));
  };
}

/// Nobody computes with it.
void leave_head_empty(const models::NamesInFiles& names, fsdp::FsdpOptions& fsdp) {
  fsdp.param_init_fn = [names, others = std::move(fsdp.param_init_fn)](const std::string& name,
                                                                       const at::Tensor& parameter) {
    if (!names.is_of_head(name)) return others ? others(name, parameter) : void();
    auto values = parameter.detach();
    nn::allocate(values);
    values.zero_();
  };
}

/// The layers that LoftQ packs in its own way: the adapted ones.
void choose_loftq(const Assembled& a, const io::TensorSource& source, peft::LoftqSource& loftq) {
  const auto& lora = dynamic_cast<const peft::Lora&>(*a.adapters->method);
  const models::NamesInFiles names(*a.model);
  std::map<std::string, peft::LoftqSource::Matrix> matrices;
  for (const auto& slot : peft::adapted_slots(*a.model)) {
    if (slot.linear && slot.linear->codec())
      matrices[names.in(source, slot.weight_name())] = {slot.linear->codec(), lora.rank_of(slot.name),
                                                        slot.transposed()};
  }
  loftq.choose(std::move(matrices));
}

/// The dense values of a weight that is packed while it is read.
at::Tensor stored_weight(const io::TensorSource& source, const models::NamesInFiles& names,
                         const std::string& parameter) {
  const auto* packed = dynamic_cast<const quant::PackedSource*>(&source);
  if (packed && !packed->is_also_dense()) {
    throw ConfigError(
        "init_lora_weights loftq makes good what packing takes from the weights, and this folder holds "
        "packed ones only; name the folder of the model that they were made from",
        "init_lora_weights");
  }
  return io::read_tensor(source, names.in(source, parameter));
}

/// Of an adapter of a classifier over a base that has no head, or one for other classes.
std::optional<checkpoint::ClassifierNames> classes_of_adapter(const AssembleOptions& options,
                                                              const peft::PeftMethod& method) {
  if (options.classifier || method.task_type != "SEQ_CLS") return {};
  auto classes = adapter_classes(options.adapter_folder);
  const auto json = models::read_model_config(options.model_folder);
  const families::ConfigReader base(json, options.model_folder + "/config.json");
  const bool has_head = classes && families::is_classifier(base) &&
                        families::parse_classifier(base).num_labels == std::ssize(classes->labels);
  return has_head ? std::nullopt : classes;
}

void count(Assembled& a) {
  a.parameters = a.trainable = 0;
  const nn::DenseElements elements(*a.model);
  for (const auto& item : a.model->named_parameters()) {
    a.parameters += elements.of(item.key(), item.value());
    if (item.value().requires_grad()) a.trainable += item.value().numel();
  }
}

void note_unused_weights(Assembled& a, const std::string& folder, const io::TensorSource& source) {
  const auto unused = models::unused_weights(*a.model, source);
  if (unused.empty()) return;
  a.notes.push_back("Some weights of the model checkpoint at " + folder + " were not used when initializing " +
                    a.model->class_name() + ": " + models::few_of(unused));
}

/// Puts them into the model and their files in front of its weights.
void attach_several(Assembled& a, const AssembleOptions& options, const models::BuildOptions& build,
                    fsdp::FsdpOptions& fsdp) {
  const auto skeleton = [&] { return models::build_model(options.model_folder, nullptr, build); };
  a.several =
      std::make_shared<peft::SeveralAdapters>(*a.model, a.config, options.several, skeleton, options.train_several);
  count(a);
  fsdp.source = a.several->joined_with(fsdp.source);
  fsdp.source_name = [several = a.several, base = std::move(fsdp.source_name)](const std::string& name) {
    const auto kept = several->source_name(name);
    return kept.empty() ? base(name) : kept;
  };
  fsdp.param_init_fn = a.several->init();
}

/// Which parameters are in the adapters' files, whether they train or not.
std::function<bool(const std::string&)> saved_with_adapters(const Assembled& a) {
  std::set<std::string> names;
  const auto add = [&](const checkpoint::AdaptedModule& adapted) {
    for (const auto& entry : peft::adapter_entries(adapted.module, adapted.method))
      names.insert(adapted.sharded_name(entry.parameter));
  };
  if (a.adapters) add(a.adapted());
  if (a.several)
    for (const auto& member : a.several->members()) add(a.adapted(member));
  return [names = std::move(names)](const std::string& name) { return names.contains(name); };
}

void freeze_lora_a(Assembled& a) {
  train::freeze_lora_a(*a.model);
  if (!a.adapters) return;
  a.adapters->trainable = 0;
  for (const auto& item : a.model->named_parameters())
    if (item.value().requires_grad()) a.adapters->trainable += item.value().numel();
}

}  // namespace

Assembled assemble(const AssembleOptions& options, std::shared_ptr<comm::Communicator> group) {
  Assembled a;
  fsdp::FsdpOptions fsdp = options.fsdp;
  const bool is_from_folder = !fsdp.source;
  if (is_from_folder) {
    fsdp.source = models::open_model_weights(options.model_folder);
  } else if (const auto packed = models::packed_in_folder(fsdp.source, options.model_folder)) {
    fsdp.source = packed;
  }
  models::check_sizes(options.model_folder, *fsdp.source);
  models::BuildOptions build{.dtype = options.dtype,
                             .min_vocab_size = options.min_vocab_size,
                             .attn_implementation = options.attn_implementation,
                             .classifier = options.classifier};
  auto method = options.method;
  if (!options.adapter_folder.empty()) {
    method = peft::read_adapter_config(options.adapter_folder);
    a.classes = classes_of_adapter(options, *method);
    if (a.classes) build.classifier = head_for(*a.classes);
  }
  build.pooler = options.is_body_alone && !build.classifier && fsdp.source->find("pooler.dense.weight");
  a.model = models::build_model(options.model_folder, &a.config, build);
  if (a.classes) a.classes->architecture = a.model->class_name();
  if (!options.adapter_folder.empty()) {
    method = peft::adapter_method(options.adapter_folder, *a.model, &a.notes);
    const auto rows = peft::kept_vocabulary(options.adapter_folder, *a.model, a.config.vocab_size);
    if (rows > a.config.vocab_size) {
      build.min_vocab_size = rows;
      a.model = models::build_model(options.model_folder, &a.config, build);
    }
  } else if (method) {
    method->check_new();
  }
  const auto as_stored = fsdp.source;
  std::shared_ptr<peft::LoftqSource> loftq;
  if (const auto* lora = dynamic_cast<const peft::Lora*>(method.get()); lora && lora->loftq_iterations() > 1) {
    if (std::dynamic_pointer_cast<const quant::PackedSource>(fsdp.source))
      throw ConfigError("loftq_iter above 1 packs a base in its own way, and '" + options.model_folder +
                            "' holds packed weights; name the folder of the model that they were made from",
                        "loftq_config");
    fsdp.source = loftq = std::make_shared<peft::LoftqSource>(fsdp.source, lora->loftq_iterations());
  }
  pack_layers(a, options, method.get(), fsdp);
  if (method) a.adapters = peft::apply_adapter(*a.model, a.config, *method);
  if (options.method) a.notes.insert(a.notes.end(), a.adapters->notes.begin(), a.adapters->notes.end());
  if (loftq) choose_loftq(a, *as_stored, *loftq);
  if (options.freeze_lora_a) freeze_lora_a(a);
  count(a);
  if (is_from_folder) note_unused_weights(a, options.model_folder, *as_stored);
  const auto names = std::make_shared<const models::NamesInFiles>(*a.model);
  if (!fsdp.source_name) {
    fsdp.source_name = [source = fsdp.source, names](const std::string& name) { return names->in(*source, name); };
  }
  if (build.min_vocab_size > 0) {
    auto grown = grow_tables(fsdp, *a.model, a.config.vocab_size);
    if (options.method && !grown.empty()) note_frozen_rows(a, grown);
    if (a.adapters && !grown.empty()) {  // an adapter for new tokens is of no use without their rows
      const bool has_head = std::find(grown.begin(), grown.end(), a.config.output_embedding) != grown.end();
      if (!has_head) grown.push_back(a.config.output_embedding);
      a.adapters->method->kept_embeddings = std::move(grown);
    }
  }
  if (!options.adapter_folder.empty())
    read_adapter_first(fsdp, {options.adapter_folder, *a.model, *a.adapters->method});
  if (!options.several.empty()) attach_several(a, options, build, fsdp);
  if (a.adapters) fsdp.param_init_fn = peft::adapter_init(*a.model, *a.adapters->method, options.seed);
  if (build.classifier) begin_missing_head(a, options, fsdp);
  if (options.is_body_alone && !build.classifier) leave_head_empty(*names, fsdp);
  if (!fsdp.wrap) fsdp.wrap = fsdp::wrap_classes(a.config.no_split_classes);
  if (options.recompute_every > 0)
    fsdp.activation_checkpointing =
        fsdp::every_nth(options.recompute_every, fsdp::wrap_classes({a.config.no_split_classes.front()}));
  fsdp.keeps_frozen = saved_with_adapters(a);
  if (options.before_sharding) options.before_sharding(a, fsdp);
  a.sharded = fsdp::fully_shard(*a.model, std::move(group), std::move(fsdp));
  const auto begin = [&](const checkpoint::AdaptedModule& adapted, std::optional<std::uint64_t> seed) {
    checkpoint::initialise_from_weights(
        *a.sharded, adapted, seed, [&](const std::string& name) { return stored_weight(*as_stored, *names, name); });
  };
  if (a.adapters)
    begin(a.adapted(), options.adapter_folder.empty() ? std::optional<std::uint64_t>(options.seed) : std::nullopt);
  for (std::size_t i = 0; i < options.several.size(); ++i)
    if (const auto& adapter = options.several[i]; adapter.folder.empty())
      begin(a.adapted(a.several->members()[i]), adapter.seed);
  return a;
}

}  // namespace tessera::tasks
