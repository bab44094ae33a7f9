#include "tasks/opened_model.h"

#include <fmt/format.h>

#include <ostream>

#include "checkpoint/model_files.h"
#include "families/config_reader.h"
#include "hub/model_folder.h"
#include "models/gguf_model.h"
#include "tasks/fsdp_options.h"
#include "tasks/same_snapshot.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

/// One adapter is the model's own; of several each row takes one.
AssembleOptions with_adapters(const GenerateOptions& options, AssembleOptions assembled, const std::string& only) {
  if (options.adapters.size() < 2 && options.adapter_name.empty()) {
    assembled.adapter_folder = only;
  } else {
    for (const auto& [name, folder] : options.adapters) assembled.several.push_back({name, hub::find_adapter(folder)});
  }
  return assembled;
}

}  // namespace

OpenedModel open_model(const GenerateOptions& options, std::shared_ptr<comm::Communicator> group) {
  const auto place = hub::find_model(options.model);
  if (!place.adapter.empty() && !options.adapters.empty())
    throw ConfigError("--model '" + options.model + "' is an adapter itself; with --adapter, name its base model",
                      "adapter");
  const std::string adapter = options.adapters.empty() ? place.adapter : hub::find_adapter(options.adapters[0].folder);
  OpenedModel opened;
  require_same_snapshot({place.folder, adapter}, *group);
  opened.tokenizer_folder = options.tokenizer.empty() ? checkpoint::tokenizer_among({adapter, place.folder})
                                                      : hub::find_settings(options.tokenizer);
  opened.tokenizer = text::open_tokenizer(opened.tokenizer_folder);
  const auto settings = config::from_environment();
  const auto config = models::read_model_config(place.folder);
  const auto dtype =
      checkpoint::chosen_dtype(options.dtype, families::ConfigReader(config, place.folder + "/config.json"));
  auto fsdp = fsdp_options(settings);
  fsdp.gather = options.gather;
  fsdp.device = compute_device(options.device, settings, *group);
  const auto generates = [&](const Assembled& model, const fsdp::FsdpOptions&) {
    if (model.config.kind != models::ModelKind::kSequenceClassification) return;
    const std::string named =
        adapter.empty() ? options.model : fmt::format("{} --adapter_name_or_path {}", place.folder, adapter);
    throw ConfigError(
        fmt::format("'{}' is a classifier, which gives classes or numbers and no text; 'tessera classify --model {} "
                    "--do_train false --do_predict --test_file FILE' writes them",
                    adapter.empty() ? options.model : adapter, named),
        "model");
  };
  opened.loaded = assemble(with_adapters(options,
                                         {.model_folder = place.folder,
                                          .is_frozen = true,
                                          .dtype = dtype,
                                          .fsdp = std::move(fsdp),
                                          .before_sharding = generates},
                                         adapter),
                           group);
  opened.settings = models::read_generation_config(place.folder, opened.loaded.config);
  models::read_generation_json(options.settings, "command line", opened.settings);
  opened.settings.seed = static_cast<std::uint64_t>(options.seed);
  return opened;
}

void TokenStream::add(const at::Tensor& tokens) {
  ids_.push_back(static_cast<std::int32_t>(tokens.contiguous().const_data_ptr<std::int64_t>()[0]));
  const auto text = tokenizer_.decode(ids_, skip_special_);
  if (!text.ends_with("\xEF\xBF\xBD")) print(text);  // else perhaps half a character
}

std::string TokenStream::finish() {
  const std::string text = tokenizer_.decode(ids_, skip_special_);
  print(text + "\n");
  return text;
}

void TokenStream::print(std::string_view text) {
  if (text.size() <= printed_) return;
  out_ << text.substr(printed_) << std::flush;
  printed_ = text.size();
}

}  // namespace tessera::tasks
