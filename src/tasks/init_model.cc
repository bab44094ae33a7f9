#include "tasks/init_model.h"

#include <filesystem>
#include <ostream>

#include "base/file.h"
#include "checkpoint/pretrained.h"
#include "config/options.h"
#include "io/tensor_source.h"
#include "models/model.h"
#include "tessera/base/error.h"

namespace tessera::tasks {

int init_model(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string from, to;
  std::int64_t seed = 42;
  bool overwrite = false;
  config::OptionTable table("tessera init-model", "makes a model folder with random weights");
  table.positional(&from, "CONFIG_FOLDER", "folder with config.json (and tokenizer files, which are copied)");
  table.positional(&to, "OUTPUT_FOLDER", "folder to write");
  table.add(&seed, {"--seed"}, "the weights depend on it and on their names only");
  table.add(&overwrite, {"--overwrite"}, "replace weights that are already there");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const std::string file = to + "/model.safetensors";
  if (!overwrite && std::filesystem::exists(file)) {
    throw CheckpointError("'" + file + "' exists already. Give another folder, or --overwrite to replace it.", file);
  }
  models::ModelConfig config;
  const auto model = models::build_model(from, &config);
  ensure_writable_folder(to);
  models::init_weights(*model, static_cast<std::uint64_t>(seed));
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::int64_t numel = 0;
  for (const auto& p : model->named_parameters()) {
    tensors.emplace_back(p.key(), p.value().detach());
    numel += p.value().numel();
  }
  io::write_safetensors(file, tensors);
  checkpoint::copy_model_files(from, to);
  out << config.model_type << " with " << numel << " random parameters saved in " << to << "\n";
  return 0;
}

}  // namespace tessera::tasks
