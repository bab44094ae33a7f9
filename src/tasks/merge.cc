#include "tasks/merge.h"

#include <filesystem>
#include <ostream>

#include "checkpoint/pretrained.h"
#include "config/options.h"
#include "models/config_reader.h"
#include "tasks/assemble.h"
#include "tasks/fsdp_options.h"
#include "tasks/model_folder.h"
#include "tessera/base/error.h"

namespace tessera::tasks {

int merge(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string base, adapter, output;
  bool overwrite = false;
  config::OptionTable table("tessera merge", "folds an adapter into the weights of its model; also under launch");
  table.add(&base, {"--model_name_or_path", "--model"}, "folder of the base model").required();
  table.add(&adapter, {"--adapter_name_or_path", "--adapter"}, "folder of the adapter").required();
  table.add(&output, {"--output_dir"}, "folder to write: model.safetensors, config.json, tokenizer files").required();
  table.add(&overwrite, {"--overwrite_output_dir"}, "replace weights that are already there");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const std::string folder = find_model_folder(base), file = output + "/model.safetensors";
  if (!overwrite && std::filesystem::exists(file)) {
    throw CheckpointError("'" + file + "' exists already. Give another folder, or --overwrite_output_dir.", file);
  }
  auto group = comm::connect();
  auto fsdp = fsdp_options(config::from_environment());
  fsdp.precision = {};  // as stored
  const auto json = models::read_json(folder + "/config.json");
  const auto dtype = models::stored_dtype(models::ConfigReader(json, folder + "/config.json"));
  Assembled a = assemble({.model_folder = folder, .adapter_folder = adapter, .dtype = dtype, .fsdp = fsdp}, group);
  checkpoint::save_merged(*a.sharded, *a.model, folder, output,
                          a.adapters->untied ? checkpoint::Head::kUntied : checkpoint::Head::kAsInBase);
  if (group->rank() == 0) {
    out << a.config.model_type << " with " << a.adapters->adapted.size() << " merged adapters saved in " << output
        << "\n";
  }
  group->barrier();
  return 0;
}

}  // namespace tessera::tasks
