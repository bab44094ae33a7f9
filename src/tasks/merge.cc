#include "tasks/merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <ostream>

#include "checkpoint/pretrained.h"
#include "checkpoint/save_packed.h"
#include "config/options.h"
#include "families/classifier.h"
#include "families/config_reader.h"
#include "formats/gguf.h"
#include "hub/model_folder.h"
#include "models/gguf_model.h"
#include "models/pack_layers.h"
#include "tasks/assemble.h"
#include "tasks/fsdp_options.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

bool is_body_alone(const std::string& model_folder, const std::shared_ptr<const models::Model>& model,
                   const std::shared_ptr<const io::TensorSource>& weights) {
  const auto json = models::read_model_config(model_folder);
  if (!families::is_body_alone(families::ConfigReader(json, model_folder + "/config.json"))) return false;
  return models::lacks_head_alone(model ? *model : *models::build_model(model_folder, nullptr),
                                  weights ? *weights : *models::open_model_weights(model_folder));
}

namespace {

std::string write(const WriteModelOptions& o, const std::shared_ptr<comm::Communicator>& group) {
  auto fsdp = fsdp_options(config::from_environment());
  fsdp.precision = {};  // as stored
  fsdp.source = o.source;
  const auto json = models::read_model_config(o.model_folder);
  const auto dtype = checkpoint::chosen_dtype(o.dtype, families::ConfigReader(json, o.model_folder + "/config.json"));
  const bool is_body = is_body_alone(o.model_folder, nullptr, o.source);
  Assembled a = assemble({.model_folder = o.model_folder,
                          .adapter_folder = o.adapter_folder,
                          .pack_dense = false,
                          .is_body_alone = is_body,
                          .dtype = dtype,
                          .fsdp = fsdp},
                         group);
  const std::string notes = fmt::format("{}{}", fmt::join(a.notes, "\n"), a.notes.empty() ? "" : "\n");
  checkpoint::SaveOptions options{
      .files = {.model = o.model_folder,
                .tokenizer = checkpoint::tokenizer_among({o.tokenizer_folder, o.model_folder})},
      .vocab_size = a.config.vocab_size,
      .classifier = a.classes,
      .is_body_alone = is_body && !a.classes,
      .device = o.device};
  const bool lacks_padding = a.classes && a.classes->pad_token_id < 0;
  if (lacks_padding && checkpoint::has_tokenizer(options.files.tokenizer))
    options.classifier->pad_token_id = text::open_tokenizer(options.files.tokenizer)->pad_id();
  const auto save_tokenizer = [&] {
    const auto gguf = models::gguf_file_of(options.files.tokenizer);  // its tokenizer is no file that could be copied
    if (group->rank() != 0 || !gguf) return;
    const auto header = read_gguf_header(*gguf);
    if (header.texts("tokenizer.ggml.merges") || header.numbers("tokenizer.ggml.scores"))
      text::open_tokenizer(options.files.tokenizer)->save(o.output);
  };
  const auto dtype_name = std::string(c10::getDtypeNames(dtype).first);
  auto quantization = o.packed.quantization(a.config.output_embedding, dtype_name);
  if (quantization) quantization->skip_modules = models::stated_skip_modules(*a.model, a.config, *quantization);
  if (quantization || checkpoint::has_packed(*a.sharded)) {
    if (is_body)
      throw ConfigError("'" + o.model_folder +
                            "' is the body of a model without its head, which is merged dense only; "
                            "leave --type out",
                        "type");
    checkpoint::SavePackedOptions packed{.save = options};
    packed.save.dtype = dtype;
    if (a.adapters) packed.adapted.emplace(a.adapted());
    if (a.adapters && a.adapters->untied) packed.head = checkpoint::Head::kUntied;
    if (quantization) packed.packed = {*quantization, models::layers_to_pack(*a.model, a.config, *quantization)};
    checkpoint::save_packed(*a.sharded, *a.model, packed, o.output);
    save_tokenizer();
    return notes + fmt::format("{} with {} {} saved in {}\n", a.config.model_type,
                               a.adapters ? a.adapters->adapted.size() : static_cast<std::size_t>(a.parameters),
                               a.adapters ? "merged adapters" : "parameters", o.output);
  }
  if (!a.adapters) {
    checkpoint::save_pretrained(*a.sharded, options, o.output);
    save_tokenizer();
    return notes + fmt::format("{} with {} parameters saved in {}\n", a.config.model_type, a.parameters, o.output);
  }
  checkpoint::save_merged(*a.sharded, a.adapted(), options, o.output,
                          a.adapters->untied ? checkpoint::Head::kUntied : checkpoint::Head::kAsInBase);
  save_tokenizer();
  return notes + fmt::format("{} with {} merged adapters saved in {}\n", a.config.model_type,
                             a.adapters->adapted.size(), o.output);
}

}  // namespace

std::string write_model(const WriteModelOptions& o, const std::shared_ptr<comm::Communicator>& group) {
  std::string line;
  tensor::naming_device_errors([&] { return fmt::format("writing '{}' with '{}'", o.output, o.device.str()); },
                               [&] { line = write(o, group); }, checkpoint::kHelpInWriting);
  return line;
}

int merge(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string base, adapter, output, device = "auto";
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kAuto;
  bool overwrite = false;
  PackFlags packed;
  config::OptionTable table("tessera merge", "folds an adapter into the weights of its model; also under launch");
  table.example("--adapter_name_or_path out --output_dir merged");
  table.add(&base, {"--model_name_or_path", "--model"},
            "folder, or name on the Hub, of the base model; default: the one that the adapter names");
  table.add(&adapter, {"--adapter_name_or_path", "--adapter"}, "folder, or name on the Hub, of the adapter").required();
  table.add(&output, {"--output_dir"}, "folder to write: model.safetensors, config.json, tokenizer files").required();
  table.add_enum(&dtype, checkpoint::dtype_choices(), {"--dtype"}, "of the weights; auto: as config.json says");
  add_pack_flags(table, packed);
  train::add_device_flag(table, device);
  table.add(&overwrite, {"--overwrite_output_dir"}, "replace weights that are already there");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  adapter = hub::find_adapter(adapter);
  const std::string folder =
      base.empty() ? hub::find_base(adapter, "--model_name_or_path BASE") : hub::find_model_folder(base);
  const std::string file = output + "/model.safetensors";
  if (!overwrite && std::filesystem::exists(file)) {
    throw CheckpointError("'" + file + "' exists already. Give another folder, or --overwrite_output_dir.", file);
  }
  auto group = comm::connect();
  const std::string line = write_model({.model_folder = folder,
                                        .adapter_folder = adapter,
                                        .output = output,
                                        .tokenizer_folder = adapter,
                                        .dtype = dtype,
                                        .packed = packed,
                                        .device = compute_device(device, config::from_environment(), *group)},
                                       group);
  if (group->rank() == 0) out << line;
  group->barrier();
  return 0;
}

}  // namespace tessera::tasks
