#include "tasks/init_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/file.h"
#include "checkpoint/model_files.h"
#include "config/options.h"
#include "families/families.h"
#include "hub/model_folder.h"
#include "models/check_sizes.h"
#include "models/model.h"
#include "models/names_in_files.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {
namespace {

/// Random weights are made whole: ConfigError before memory is taken that this machine has not.
void check_memory(const std::string& folder) {
  const std::string file = folder + "/config.json";
  const auto config = families::parse_config(models::read_described_config(folder), file);
  double bytes = 0, most = 0;
  std::string largest;
  for (const auto& p : families::parameters_of(families::blueprint_of(config))) {
    double numel = 1;  // which no integer need hold
    for (const auto size : p.shape) numel *= static_cast<double>(size);
    bytes += 4 * numel;
    if (numel > most) largest = fmt::format("'{}' [{}]", p.name, fmt::join(p.shape, ", "));
    most = std::max(most, numel);
  }
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    throw ConfigError(
        fmt::format("{} describes a model of {:.1f} GiB (its largest tensor is {}), this machine has "
                    "{:.1f} GiB; are its sizes right?",
                    file, bytes / (1 << 30), largest, memory / (1 << 30)));
}

}  // namespace

int init_model(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string from, to;
  std::int64_t seed = 42;
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kAuto;
  bool overwrite = false;
  config::OptionTable table("tessera init-model", "makes a model folder with random weights");
  table.example("Llama-config tiny --seed 1");
  table.positional(&from, "CONFIG_FOLDER", "folder with config.json (and tokenizer files, which are copied)");
  table.positional(&to, "OUTPUT_FOLDER", "folder to write");
  table.add(&seed, {"--seed"}, "the weights depend on it and on their names only");
  table.add_enum(&dtype, checkpoint::dtype_choices(), {"--dtype"}, "of the weights; auto: as config.json says");
  table.add(&overwrite, {"--overwrite"}, "replace weights that are already there");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const std::string file = to + "/model.safetensors";
  if (!overwrite && std::filesystem::exists(file)) {
    throw CheckpointError("'" + file + "' exists already. Give another folder, or --overwrite to replace it.", file);
  }
  from = hub::find_settings(from);
  check_memory(from);
  models::ModelConfig config;
  const auto model = models::build_model(from, &config);
  ensure_writable_folder(to);
  models::init_weights(*model, static_cast<std::uint64_t>(seed));
  const auto stored = checkpoint::chosen_dtype(dtype).value_or(config.stored_dtype);
  const models::NamesInFiles names(*model);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::int64_t numel = 0;
  for (const auto& p : model->named_parameters()) {
    const auto value = checkpoint::to_stored(p.value().detach(), stored, p.key());
    for (const auto& name : names.to_write(p.key())) tensors.emplace_back(name, value);
    numel += p.value().numel();
  }
  io::write_safetensors(file, tensors);
  checkpoint::copy_model_files({.model = from, .tokenizer = from}, to, {.dtype = stored});
  out << config.model_type << " with " << numel << " random parameters saved in " << to << "\n";
  return 0;
}

}  // namespace tessera::tasks
