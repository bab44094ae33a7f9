#include "verify/verify.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "base/folder_names.h"
#include "base/open_file.h"
#include "base/plain_reason.h"
#include "config/options.h"
#include "hub/model_folder.h"
#include "models/check_sizes.h"
#include "models/gguf_model.h"
#include "tasks/assemble.h"
#include "tasks/fsdp_options.h"
#include "tasks/named_folder.h"
#include "tessera/base/error.h"
#include "verify/reference_json.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Verifier = bool (*)(const VerifyOptions&, std::shared_ptr<comm::Communicator>, std::ostream&);

/// What a folder holds decides, not its name.
Verifier verifier_for(const std::string& folder) {
  if (folder.ends_with(".gguf") && fs::is_regular_file(folder)) return verify_outputs;
  if (!is_there(folder) || !fs::is_directory(folder)) {
    throw DataError(
        "'" + folder + "' is neither a folder nor a GGUF file. Give a model with reference tensors beside it.", folder);
  }
  const fs::path expect = fs::path(folder) / "expect.json";
  if (is_there(fs::path(folder) / "expect_model.safetensors")) return verify_checkpoint;
  if (!is_there(expect)) return verify_outputs;
  const auto text = read_reference_json(expect.string());
  if (text.contains("status") && text.contains("per_device_train_batch_size")) return verify_prepared;
  if (text.contains("combined") && text.contains("adapters")) return verify_combined;
  if (text.contains("cases") && (text.contains("policy") || text.contains("model"))) return verify_preference;
  if (text.contains("start") && text.contains("micro_losses")) return verify_preference_run;
  if (text.contains("log_history")) return verify_trainer;
  if ((text.contains("base") || text.contains("parameter_dtypes")) && text.contains("settings")) return verify_run;
  if (text.contains("runs") && text.contains("wrapping")) return verify_fsdp;
  if (text.contains("runs")) return verify_generation;
  if (text.contains("bad_words")) return verify_processors;
  return verify_outputs;
}

}  // namespace

bool verify_folder(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  try {
    const auto verifier = verifier_for(options.folder);
    if (!options.adapters.empty() && verifier != verify_outputs && verifier != verify_generation)
      throw ConfigError("--adapter goes with a model's outputs and generations; '" + options.folder +
                            "' names its adapters itself, or has none",
                        "adapter");
    return verifier(options, std::move(group), out);
  } catch (const nlohmann::json::exception& e) {
    const std::string file = (fs::path(options.folder) / "expect.json").string();
    throw DataError("'" + file + "': " + plain_reason(e), file);
  }
}

tasks::Assembled load_model(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group) {
  tasks::Assembled a;
  const auto place = hub::find_model(options.folder);
  const auto weights = models::open_model_weights(place.folder);
  const auto packed = std::dynamic_pointer_cast<const quant::PackedSource>(weights);
  if (!place.adapter.empty() && !options.adapters.empty())
    throw ConfigError("'" + options.folder + "' is an adapter itself; with --adapter, name its base model", "adapter");
  if (options.sharded || !options.adapters.empty() || (packed && !packed->is_also_dense()) || !place.adapter.empty()) {
    a = tasks::assemble({.model_folder = place.folder,
                         .adapter_folder = place.adapter,
                         .several = options.adapters,
                         .attn_implementation = kReferenceAttention,
                         .fsdp = options.fsdp},
                        std::move(group));
    a.sharded->set_gradient_divisor(1.0);
  } else {
    models::check_sizes(place.folder, *weights);
    a.model = models::build_model(place.folder, &a.config, {.attn_implementation = kReferenceAttention});
    models::load_weights(*a.model, *weights);
  }
  return a;
}

int verify(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  VerifyOptions options;
  fsdp::GatherForm gather = fsdp::GatherForm::kAuto;
  std::string device = "auto";
  std::vector<std::string> adapters;
  config::OptionTable table(
      "tessera verify", "compares a model folder with the reference tensors, generations or training run beside it");
  table.example("reference/llama --sharded true");
  table.positional(&options.folder, "DIR",
                   "a folder of a model or adapter with io*.safetensors, or a run with expect.json");
  table.add(&options.sharded, {"--sharded"}, "through fully sharded units (a replayed run always is)");
  table.add(&options.logits_tolerance, {"--logits_tolerance"}, "largest difference relative to the largest magnitude");
  table.add(&options.grad_tolerance, {"--grad_tolerance"}, "the same for gradients");
  table
      .add(&adapters, {"--adapter"},
           "adapters on the model, NAME=FOLDER (the flag may be repeated): expect.json says which row (adapter_names) "
           "or "
           "generation (adapter) takes which, as PEFT's arguments do; one takes all")
      .repeats();
  table.add(&options.tokenizer, {"--tokenizer"},
            "of prepared rows: file or folder; empty: tokenizers/NAME or data/tokenizers/NAME beside DIR or above");
  table.add_enum(&gather, tasks::gather_forms(), {"--gather"}, "how units become readable");
  train::add_device_flag(table, device);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  options.folder = without_end_slashes(std::move(options.folder));  // its name is printed
  for (const auto& [name, folder] : tasks::named_folders(adapters, "--adapter"))
    options.adapters.push_back({name, hub::find_adapter(folder)});
  auto group = comm::connect();
  const auto launch = config::from_environment();
  if (launch.mixed_precision == config::MixedPrecision::kFp16) {
    throw ConfigError("verify compares without a gradient scaler: set mixed_precision to no or bf16",
                      "mixed_precision");
  }
  options.fsdp = tasks::fsdp_options(launch);
  options.fsdp.gather = gather;
  options.fsdp.device = tasks::compute_device(device, launch, *group);
  if (group->size() > 1 || !options.fsdp.device.is_cpu()) options.sharded = true;
  std::ostringstream quiet;
  std::ostream& report = group->rank() == 0 ? out : quiet;
  const bool passed = [&] {
    try {
      return verify_folder(options, group, report);
    } catch (const nlohmann::json::exception& e) {  // nothing else that is read as JSON here comes without a name
      throw DataError(fmt::format("{}/expect.json: {}", options.folder, plain_reason(e)), options.folder);
    }
  }();
  report << (passed ? "verified: everything within tolerance\n" : "DIFFERS from the reference\n") << std::flush;
  group->barrier();
  return passed ? 0 : 1;
}

}  // namespace tessera::verify
