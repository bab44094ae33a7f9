#include "tasks/combine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <ostream>

#include "base/file.h"
#include "checkpoint/model_files.h"
#include "config/options.h"
#include "hub/model_folder.h"
#include "peft/combine/combine_lora.h"
#include "tasks/named_folder.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

struct CombineFlags {
  std::vector<std::string> adapters, weights;
  peft::CombineOptions options;
  std::int64_t seed = 0;
  std::string output;
  bool overwrite = false;
};

/// The combination types for which `holds`.
template <class Holds>
std::vector<std::string> types_that(Holds holds) {
  std::vector<std::string> out;
  for (const auto& type : peft::combination_types())
    if (holds(type)) out.push_back(type);
  return out;
}

config::OptionTable combine_table(CombineFlags& f) {
  config::OptionTable table("tessera combine",
                            "makes one LoRA adapter of several, as PEFT's add_weighted_adapter does");
  table.example("--adapter out/math out/code --weights 0.7,0.3 --output_dir both");
  const std::string type = "--combination_type";
  table
      .add(&f.adapters, {"--adapter", "--adapters"},
           "folders of LoRA adapters of one base model, NAME=FOLDER or FOLDER; the flag may be repeated")
      .repeats()
      .required();
  table.add(&f.weights, {"--weights"}, "one number for each adapter, also negative").repeats().required();
  table
      .add(&f.options.combination_type, {type},
           "svd and cat are exact but for the rank; linear and what has no _svd add up A and B by themselves")
      .choices(peft::combination_types());
  const auto svd = types_that([](const std::string& t) { return t.ends_with("svd"); });
  const auto signs = types_that([](const std::string& t) { return t.find("ties") != std::string::npos; });
  const auto random = types_that([](const std::string& t) { return t.starts_with("dare"); });
  table.add(&f.options.svd_rank, {"--svd_rank"}, "of the new adapter; default: the largest of the adapters")
      .only_with({{type, svd}});
  table.add(&f.options.svd_clamp, {"--svd_clamp"}, "cut the new factors to this quantile of their values")
      .only_with({{type, svd}});
  table.add(&f.options.density, {"--density"}, "part of the values that ties, dare and magnitude_prune keep, 0 to 1")
      .only_with({{type, types_that(peft::prunes)}});
  table
      .add_enum(&f.options.majority_sign,
                {{"total", peft::MajoritySign::kTotal}, {"frequency", peft::MajoritySign::kFrequency}},
                {"--majority_sign_method"}, "whether ties elects signs by sums or by counts")
      .only_with({{type, signs}});
  table.add(&f.seed, {"--seed"}, "of what dare drops").only_with({{type, random}});
  table.add(&f.options.base_model, {"--base_model_name_or_path", "--model_name_or_path"},
            "what all adapters are for, where their configurations name it differently");
  table.add(&f.output, {"--output_dir"}, "folder to write: adapter_config.json, adapter_model.safetensors").required();
  table.add(&f.overwrite, {"--overwrite_output_dir"}, "replace an adapter that is already there");
  return table;
}

double number_of(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !(value - value == 0))
    throw ConfigError("--weights expects numbers, found '" + word + "'", "weights");
  return value;
}

void check(const CombineFlags& f) {
  const auto& o = f.options;
  if (f.weights.size() != f.adapters.size()) {
    throw ConfigError(fmt::format("--weights must have a number for each of the {} adapters, found {}",
                                  f.adapters.size(), f.weights.size()),
                      "weights");
  }
  if (o.svd_rank && *o.svd_rank <= 0)
    throw ConfigError(fmt::format("--svd_rank must be at least 1, found {}", *o.svd_rank), "svd_rank");
  if (o.svd_clamp && !(*o.svd_clamp >= 0 && *o.svd_clamp <= 1))
    throw ConfigError(fmt::format("--svd_clamp must be from 0 to 1, found {}", *o.svd_clamp), "svd_clamp");
  const auto file = f.output + "/adapter_config.json";
  if (!f.overwrite && std::filesystem::exists(file))
    throw CheckpointError("'" + file + "' exists already. Give another folder, or --overwrite_output_dir.", file);
}

/// The first adapter's tokenizer goes along, unless it lies there already.
void copy_tokenizer(const std::string& from, const std::string& to) {
  if (checkpoint::has_tokenizer(from) && !std::filesystem::equivalent(from, to))
    checkpoint::copy_model_files({.model = "", .tokenizer = from}, to);
}

}  // namespace

int combine(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  CombineFlags f;
  auto table = combine_table(f);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  check(f);
  f.options.seed = static_cast<std::uint64_t>(f.seed);
  const auto folders = named_folders(f.adapters, "--adapter");
  for (std::size_t i = 0; i < folders.size(); ++i)
    f.options.adapters.push_back({folders[i].name, hub::find_adapter(folders[i].folder), number_of(f.weights[i])});
  require_writable(f.output);
  const auto report = peft::combine_lora(f.options, f.output);
  copy_tokenizer(f.options.adapters[0].folder, f.output);
  for (const auto& note : table.notes()) err << note << "\n";
  for (const auto& note : report.notes) err << "note: " << note << "\n";
  out << fmt::format("{} adapter{} combined ({}): {} modules of rank {} saved in {}\n", folders.size(),
                     folders.size() == 1 ? "" : "s", report.combination_type, report.modules, report.rank, f.output);
  return 0;
}

}  // namespace tessera::tasks
