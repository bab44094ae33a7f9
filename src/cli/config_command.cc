// tessera config: the questionnaire; config default, config update; to-fsdp2.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_text.h"
#include "base/nearest.h"
#include "base/open_file.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/questionnaire.h"
#include "config/accelerate_convert.h"
#include "config/accelerate_input.h"
#include "config/yaml_writer.h"
#include "launch/cores.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

void write_config(const std::string& path, const std::string& text) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) ensure_writable_folder(folder);
  write_file_atomically(path, text);
}

/// In the form that the file's name asks for, as accelerate does it.
std::string text_of(const nlohmann::json& document, const std::string& path) {
  return path.ends_with(".json") ? json_text(document, 2) + "\n" : config::to_yaml_text(document);
}

config::Node read_existing(const std::string& path) {
  if (!is_there(path)) {
    throw ConfigError(fmt::format("'{0}' does not exist; 'tessera config --config_file {0}' writes it", path),
                      "config_file");
  }
  return config::read_document(path);
}

int write_default(const Arguments& args, std::ostream& out) {
  std::string path = config::default_accelerate_path();
  config::AccelerateInput input;
  input.num_processes = std::min<int>(2, static_cast<int>(launch::usable_cpus().size()));
  config::OptionTable table("tessera config default",
                            "writes a config file for launch: fully sharded, by the model's layers");
  table.add(&path, {"--config_file"}, "file to write", "Configuration").placeholder("FILE");
  config::add_accelerate_options(table, input);
  table.example("--config_file fsdp_config.yaml --num_processes 2 --mixed_precision bf16");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  if (is_there(path)) {
    throw ConfigError(fmt::format("'{}' exists already; remove it, or name another file with --config_file", path),
                      "config_file");
  }
  std::vector<std::string> warnings;
  const auto resolved = config::resolve(input, "command line", /*has_file=*/false, warnings);
  write_config(path, text_of(config::to_document(resolved), path));
  for (const std::string& note : table.notes()) out << note << "\n";
  for (const std::string& warning : warnings) out << warning << "\n";
  out << "accelerate configuration saved at " << path << "\n";
  return kSuccess;
}

int update(const Arguments& args, std::ostream& out) {
  std::string path = config::default_accelerate_path();
  config::OptionTable table("tessera config update",
                            "adds today's defaults to a config file and turns its old keys into today's");
  table.add(&path, {"--config_file"}, "file to read and write").placeholder("FILE");
  table.example("--config_file fsdp_config.yaml");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  write_config(path, text_of(config::updated_document(read_existing(path), path), path));
  out << "Successfully updated the configuration file at " << path << ".\n";
  return kSuccess;
}

int ask(const Arguments& args, std::ostream& out) {
  std::string path = config::default_accelerate_path(), model;
  config::OptionTable table(
      "tessera config",
      "asks what launch needs to know, in accelerate's order, and writes its config file. 'config "
      "default' writes one without questions, 'config update' renews an old one");
  table.add(&path, {"--config_file"}, "file to write").placeholder("FILE");
  table.add(&model, {"--model"}, "propose what suits this model: its layer classes, and what fits into memory")
      .placeholder("DIR");
  table.example("--config_file fsdp_config.yaml --model HuggingFaceTB/SmolLM2-135M-Instruct");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  const Proposals proposals = propose(model);
  for (const std::string& note : proposals.notes) out << note << "\n";
  if (is_there(path)) out << "'" << path << "' exists and will be replaced\n";
  Questions questions(STDIN_FILENO, out);
  const std::string text = text_of(ask_for_config(questions, proposals), path);
  config::AccelerateInput input;
  std::vector<std::string> warnings;
  const auto document = path.ends_with(".json") ? config::parse_json(text, path) : config::parse_yaml(text, path);
  config::read_accelerate_document(document, path, input, warnings);
  (void)config::resolve(input, path, /*has_file=*/true, warnings);
  write_config(path, text);
  for (const std::string& warning : warnings) out << warning << "\n";
  out << "accelerate configuration saved at " << path << "\n";
  return kSuccess;
}

}  // namespace

int config_command(const Arguments& args, std::ostream& out, std::ostream&) {
  if (args.empty() || args[0].starts_with('-')) return ask(args, out);
  const Arguments rest(args.begin() + 1, args.end());
  if (args[0] == "default") return write_default(rest, out);
  if (args[0] == "update") return update(rest, out);
  throw ConfigError(
      fmt::format("unknown command 'config {}'{}; there are 'tessera config', 'config default' and "
                  "'config update'",
                  args[0], did_you_mean(args[0], {"default", "update"})));
}

int to_fsdp2_command(const Arguments& args, std::ostream& out, std::ostream&) {
  std::string path, output;
  bool overwrite = false;
  config::OptionTable table("tessera to-fsdp2", "turns a config file of FSDP version 1 into one of version 2");
  table.add(&path, {"--config_file"}, "file to convert").required().placeholder("FILE");
  table.add(&output, {"--output_file"}, "file to write; empty: the file itself, with --overwrite").placeholder("FILE");
  table.add(&overwrite, {"--overwrite"}, "replace the file that is written");
  table.example("--config_file fsdp_config.yaml --output_file fsdp2_config.yaml");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  if (!overwrite && output.empty())
    throw ConfigError("say where the result goes: --output_file FILE, or --overwrite for the file itself",
                      "output_file");
  if (output.empty()) output = path;
  if (!overwrite && is_there(output))
    throw ConfigError("'" + output + "' exists already; add --overwrite, or name another --output_file", "output_file");
  std::vector<std::string> notes;
  const auto converted = config::to_fsdp2(read_existing(path), path, notes);
  write_config(output, text_of(converted, output));
  for (const std::string& note : notes) out << note << "\n";
  out << "configuration saved at " << output << "\n";
  return kSuccess;
}

}  // namespace tessera::cli
