#include "tasks/export.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <ostream>

#include "base/file.h"
#include "base/open_file.h"
#include "checkpoint/open_state.h"
#include "config/options.h"
#include "families/classifier.h"
#include "families/config_reader.h"
#include "hub/model_folder.h"
#include "models/check_sizes.h"
#include "models/gguf_model.h"
#include "models/model.h"
#include "tasks/export_gguf.h"
#include "tasks/export_gguf_adapter.h"
#include "tasks/fsdp_options.h"
#include "tasks/merge.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string checkpoint, output, base, adapter, device = "auto";
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kAuto;
  bool merge = false, overwrite = false;
  std::optional<models::GgufForm> gguf;
  PackFlags packed;
};

/// The folder with adapter_config.json.
std::string adapter_config_folder(const ExportOptions& o, const std::string& found) {
  const std::string folder = is_there(o.checkpoint + "/adapter_config.json") ? o.checkpoint : o.adapter;
  if (folder.empty())
    throw ConfigError(
        "'" + found + "' holds an adapter without its adapter_config.json; name a folder that has it with --adapter",
        "adapter");
  return folder;
}

/// Tensors as they are, streamed one by one; `dtype`: of those that are no integers, unset: their own.
void copy_tensors(const io::TensorSource& source, const std::string& file, std::optional<at::ScalarType> dtype,
                  const std::function<std::string(const std::string&)>& stored_name) {
  std::vector<io::TensorInfo> infos = source.tensors();
  for (auto& info : infos) {
    info.name = stored_name(info.name);
    info.dtype = checkpoint::stored_as(info.dtype, dtype);
  }
  io::SafetensorsWriter writer(file, infos);
  for (const auto& info : source.tensors())
    writer.write(stored_name(info.name), checkpoint::to_stored(io::read_tensor(source, info.name),
                                                               checkpoint::stored_as(info.dtype, dtype), info.name));
  writer.commit();
}

/// An adapter as it is, and the files beside it.
std::string export_adapter(const ExportOptions& o, const checkpoint::OpenedState& state) {
  const std::string config_folder = adapter_config_folder(o, state.found);
  const std::string config_file = config_folder + "/adapter_config.json", config = read_file(config_file);
  families::read_json(config_file);  // whatever the method, it is a JSON object
  ensure_writable_folder(o.output);
  const auto stored_name = [](std::string name) {  // PEFT drops the adapter's own name
    if (const auto at = name.find(".default"); at != std::string::npos) name.erase(at, 8);
    return name;
  };
  copy_tensors(*state.source, o.output + "/adapter_model.safetensors", checkpoint::chosen_dtype(o.dtype), stored_name);
  write_file_atomically(o.output + "/adapter_config.json", config);
  if (const auto classes = checkpoint::read_classifier_file(config_folder))
    checkpoint::write_classifier_file(*classes, o.output);
  checkpoint::copy_model_files({.model = {}, .tokenizer = checkpoint::tokenizer_among({o.checkpoint, config_folder})},
                               o.output);
  return fmt::format("adapter of {} tensors saved in {}\n", state.source->tensors().size(), o.output);
}

/// A GGUF file's weights have the names of the folder that it was made from.
checkpoint::OpenedState open_checkpoint(const std::string& path) {
  if (!models::gguf_file_of(path)) return checkpoint::open_state(path);
  return {checkpoint::OpenedState::Kind::kModel, models::open_model_weights(path), path};
}

/// The folder with config.json: the named one, the checkpoint itself (also a GGUF file), or the base that its adapter
/// names.
std::string config_folder(const ExportOptions& o) {
  if (!o.base.empty()) return hub::find_model_folder(o.base);
  if (is_there(o.checkpoint + "/config.json") || models::gguf_file_of(o.checkpoint)) return o.checkpoint;
  if (is_there(o.checkpoint + "/adapter_config.json")) return hub::find_base(o.checkpoint, "--model_name_or_path BASE");
  throw ConfigError("'" + o.checkpoint + "' has no config.json; name the folder of the model that was trained with " +
                        "--model_name_or_path",
                    "model_name_or_path");
}

/// A model's body without a head (BertModel, LlamaModel) as it is.
std::string export_body(const ExportOptions& o, const checkpoint::OpenedState& state, const std::string& folder) {
  if (!o.packed.type.empty())
    throw ConfigError(
        "--type: '" + folder + "' is the body of a model without its head, which 'tessera quantize' packs", "type");
  const auto json = models::read_model_config(folder);
  const auto dtype = checkpoint::chosen_dtype(o.dtype, families::ConfigReader(json, folder + "/config.json"));
  models::check_sizes(folder, *state.source);
  ensure_writable_folder(o.output);
  copy_tensors(*state.source, o.output + "/model.safetensors", dtype, [](const std::string& name) { return name; });
  checkpoint::copy_model_files({.model = folder, .tokenizer = checkpoint::tokenizer_among({o.checkpoint, folder})},
                               o.output, {.dtype = dtype});
  return fmt::format("body of {} tensors, without a head, saved in {}\n", state.source->tensors().size(), o.output);
}

std::string export_model(const ExportOptions& o, const checkpoint::OpenedState& state, const std::string& adapter,
                         const std::shared_ptr<comm::Communicator>& group) {
  const std::string folder = config_folder(o);
  bool computes = !adapter.empty() || !o.packed.type.empty();
  if (adapter.empty()) {
    const auto packed = models::packed_in_folder(state.source, folder);
    computes = computes || packed;
    const auto model = models::build_model(folder, nullptr);
    if (!packed && is_body_alone(folder, model, state.source))
      return group->rank() > 0 ? "" : export_body(o, state, folder);
    const auto missing = models::missing_weights(*model, packed ? *packed : *state.source);
    if (!missing.empty())
      throw DataError(fmt::format("'{}' lacks the tensors {}; do config.json and the checkpoint belong together?",
                                  state.found, models::few_of(missing)),
                      state.found);
  }
  std::shared_ptr<io::TensorSource> source =
      state.kind == checkpoint::OpenedState::Kind::kModel ? state.source : nullptr;
  return write_model({.model_folder = folder,
                      .adapter_folder = adapter,
                      .source = source,
                      .output = o.output,
                      .tokenizer_folder = o.checkpoint,
                      .dtype = o.dtype,
                      .packed = o.packed,
                      .device = computes ? compute_device(o.device, config::from_environment(), *group) : at::kCPU},
                     group);
}

/// The folder that a merged adapter's model lies in while it becomes a GGUF file.
class Staging {
 public:
  explicit Staging(std::string folder) : folder_(std::move(folder)) {}
  ~Staging() { fs::remove_all(folder_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

/// Collective; the first rank writes the file.
std::string export_gguf(ExportOptions o, const checkpoint::OpenedState& state,
                        const std::shared_ptr<comm::Communicator>& group) {
  const std::string base = config_folder(o);
  if (state.kind == checkpoint::OpenedState::Kind::kAdapter && !o.merge)
    return group->rank() > 0 ? ""
                             : write_gguf_adapter({.model_folder = base,
                                                   .adapter_folder = adapter_config_folder(o, state.found),
                                                   .weights = state.source,
                                                   .output = o.output,
                                                   .form = *o.gguf});
  GgufRequest request{.model_folder = base,
                      .tokenizer_folder = checkpoint::tokenizer_among({o.checkpoint, base}),
                      .weights = state.source,
                      .output = o.output,
                      .form = *o.gguf};
  if (!o.merge) return group->rank() == 0 ? write_gguf(request) : "";
  std::optional<Staging> staging;
  const std::string merged = o.output + ".merged";
  if (group->rank() == 0) staging.emplace(merged);
  o.output = merged;
  (void)export_model(o, state, o.checkpoint, group);
  request.model_folder = merged;
  request.name_folder = base;
  if (group->rank() != 0) return "";
  request.weights = models::open_model_weights(merged);
  return write_gguf(request);
}

void check_gguf(const ExportOptions& o, bool is_adapter) {
  if (is_adapter && !o.merge && *o.gguf == models::GgufForm::kQ4KM)
    throw ConfigError("--gguf q4_k_m is for whole models: an adapter is written as f32, f16 or q8_0; or add --merge",
                      "gguf");
  if (!o.packed.type.empty())
    throw ConfigError("--gguf and --type exclude each other: the file has forms of its own", "type");
  if (!o.output.ends_with(".gguf"))
    throw ConfigError("--gguf writes one file: its name must end in .gguf, found '" + o.output + "'", "gguf");
}

}  // namespace

int export_checkpoint(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  ExportOptions o;
  config::OptionTable table(
      "tessera export",
      "turns a checkpoint (also one of Accelerate or torch.distributed.checkpoint, or a GGUF file) into a Hugging "
      "Face folder; also under launch");
  table.example("out/checkpoint-100 exported --dtype bfloat16");
  table.positional(&o.checkpoint, "CHECKPOINT", "folder or weight file");
  table.positional(&o.output, "OUTPUT_DIR", "folder to write");
  table.add(&o.base, {"--model_name_or_path", "--model"},
            "folder with the model's config.json and tokenizer (and, for "
            "an adapter that is merged, its weights); default: the checkpoint, or what its adapter names");
  table.add(&o.adapter, {"--adapter_name_or_path", "--adapter"},
            "folder with adapter_config.json, where the checkpoint has none");
  table.add(&o.merge, {"--merge"}, "fold the checkpoint's adapter into the weights of its model");
  table.add_enum(&o.dtype, checkpoint::dtype_choices(), {"--dtype"},
                 "of the weights; auto: as config.json says, an adapter's as they are");
  table.add_enum(&o.gguf,
                 {{"f32", models::GgufForm::kF32},
                  {"f16", models::GgufForm::kF16},
                  {"q8_0", models::GgufForm::kQ8_0},
                  {"q4_k_m", models::GgufForm::kQ4KM}},
                 {"--gguf"},
                 "write one GGUF file, OUTPUT_DIR being its name; of an adapter without --merge a file that llama.cpp "
                 "puts over its "
                 "base");
  add_pack_flags(table, o.packed);
  train::add_device_flag(table, o.device);
  table.add(&o.overwrite, {"--overwrite_output_dir"}, "replace weights that are already there");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const auto state = open_checkpoint(o.checkpoint);
  const bool is_adapter = state.kind == checkpoint::OpenedState::Kind::kAdapter;
  if (o.merge && !is_adapter)
    throw ConfigError("--merge: '" + state.found + "' holds a whole model, not an adapter; leave the flag out",
                      "merge");
  if (is_adapter && !o.merge && !o.packed.type.empty())
    throw ConfigError("--type packs the layers of a model; '" + state.found + "' holds an adapter: add --merge",
                      "type");
  const bool merge_in_place = o.merge && is_there(o.checkpoint + "/adapter_config.json") &&
                              is_there(o.checkpoint + "/adapter_model.safetensors");
  if (o.merge && !merge_in_place)
    throw ConfigError("--merge needs a folder with adapter_model.safetensors and adapter_config.json; export '" +
                          state.found + "' without --merge first, then merge what comes out",
                      "merge");
  if (o.gguf) check_gguf(o, is_adapter);
  if (!o.gguf && o.output.ends_with(".gguf"))
    throw ConfigError("'" + o.output +
                          "' is the name of a GGUF file, and without --gguf a folder is written; add --gguf f16 (or "
                          "f32, q8_0, q4_k_m), or give the folder another name",
                      "gguf");
  const std::string file =
      o.gguf ? o.output : o.output + (is_adapter && !o.merge ? "/adapter_model.safetensors" : "/model.safetensors");
  if (!o.overwrite && fs::exists(file))
    throw CheckpointError(
        "'" + file + "' exists already. Give another " + (o.gguf ? "name" : "folder") + ", or --overwrite_output_dir.",
        file);
  auto group = comm::connect();
  std::string line;
  if (o.gguf) {
    line = export_gguf(o, state, group);
  } else if (!is_adapter || o.merge) {
    line = export_model(o, state, o.merge ? o.checkpoint : "", group);
  } else if (group->rank() == 0) {
    line = export_adapter(o, state);
  }
  if (group->rank() == 0) out << line;
  group->barrier();
  return 0;
}

}  // namespace tessera::tasks
