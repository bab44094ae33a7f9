#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/env.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/open_file.h"
#include "config/accelerate_input.h"
#include "config/document.h"
#include "config/option_value.h"
#include "launch/flags_behind.h"
#include "launch/gpus.h"
#include "launch/idle_flags.h"
#include "launch/launch.h"
#include "launch/limits.h"
#include "launch/profiles.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using config::OptionTable;

void add_options(OptionTable& t, LaunchOptions& o, config::AccelerateInput& accelerate) {
  t.add(&o.config_file, {"--config_file"},
        "accelerate's YAML or JSON file (default: " + config::default_accelerate_path() + ", if it exists)",
        "Configuration")
      .placeholder("FILE");
  t.add(&o.accelerate_config, {"--accelerate_config"},
        "the same file, or the name of one of TRL's: " + fmt::format("{}", fmt::join(profile_names(), ", ")),
        "Configuration")
      .placeholder("FILE|NAME");
  config::add_accelerate_options(t, accelerate);
  const char* processes = "Processes and machines";
  t.add(&o.num_cpu_threads_per_process, {"--num_cpu_threads_per_process"},
        "threads of each rank (default: cores / ranks)", processes);
  t.add(&o.multi_gpu, {"--multi_gpu"}, "run on several GPUs", processes);
  t.add(&accelerate.dp_replicate_size, {"--parallelism_config_dp_replicate_size"}, "copies of the model", processes);
  t.add(&accelerate.dp_shard_size, {"--parallelism_config_dp_shard_size"}, "ranks that share a copy", processes);
  add_idle_flags(t);
  const char* supervision = "Supervision and output";
  t.add(&o.tee, {"--tee", "-t"}, "show the output of all ranks with a prefix: 1 stdout, 2 stderr, 3 both", supervision);
  t.add(&o.log_dir, {"--log_dir"},
        "also write DIR/rank_N/stdout.log and stderr.log; restarts go on behind what is there", supervision)
      .placeholder("DIR");
  t.add(&o.max_restarts, {"--max_restarts"},
        "start all ranks again after a failure, up to so many times; of several machines on those that are left",
        supervision);
  t.add(&o.grace_period, {"--grace_period"},
        "seconds that ranks may take to end (tasks finish the step and write a checkpoint) after Ctrl-C, SIGTERM or "
        "SIGHUP, before they are killed (default: no limit; a second Ctrl-C ends them at once)",
        supervision);
  t.add(&o.role, {"--role"}, "the ranks' ROLE_NAME", supervision);
  t.rest(&o.command, "TASK|PROGRAM ARGS...", "a task of tessera or a program, and its arguments");
}

/// "" where only the command line speaks.
std::string choose_file(LaunchPlan& plan) {
  const auto& file_or_name = plan.options.accelerate_config;
  if (file_or_name && plan.options.config_file)
    throw ConfigError("--accelerate_config and --config_file name the same thing; keep one", "accelerate_config");
  if (file_or_name) return is_there(*file_or_name) ? *file_or_name : "";
  if (const auto& given = plan.options.config_file) {
    if (!is_there(*given)) {
      throw ConfigError(
          fmt::format("--config_file '{}' does not exist; 'tessera config default --config_file {}' writes one", *given,
                      *given),
          "config_file");
    }
    return *given;
  }
  const std::string standard = config::default_accelerate_path();
  if (::access(standard.c_str(), R_OK) != 0 && errno == EACCES) {  // a service's home, or another user's
    plan.warnings.push_back(fmt::format("'{}' is taken for absent: {}", standard, std::strerror(EACCES)));
    return "";
  }
  return is_there(standard) ? standard : "";
}

/// File first, then flags on top; what a flag contradicts in the file gives way.
void read_settings(const std::vector<std::string>& args, const OptionTable& flags, LaunchPlan& plan) {
  config::AccelerateInput input;
  const std::string file = choose_file(plan);
  const auto& named = plan.options.accelerate_config;
  if (!file.empty()) {
    config::read_accelerate_file(file, input, plan.warnings);
  } else if (named) {
    config::read_accelerate_document(config::parse_yaml(profile(*named), *named), *named, input, plan.warnings);
  }
  config::drop_overridden(flags, input);
  LaunchOptions scratch;
  OptionTable table = launch_table(scratch, input);
  config::Problems said;  // by the first parse
  if (table.parse(args, said) == config::ParseResult::kHelp) return;
  plan.names_mixed_precision = input.mixed_precision.has_value();
  plan.accelerate = config::resolve(input, file.empty() ? "command line" : file, !file.empty(), plan.warnings);
}

void check_options(const LaunchPlan& plan, config::Problems& problems) {
  const LaunchOptions& o = plan.options;
  const auto require = [&](bool condition, const std::string& key, const std::string& message) {
    problems.require(condition, "--" + key + message, key);
  };
  require(o.tee >= 0 && o.tee <= 3, "tee", fmt::format(" expects 0 to 3, found {}", o.tee));
  require(o.max_restarts >= 0, "max_restarts", fmt::format(" expects 0 or more, found {}", o.max_restarts));
  require(!o.grace_period || (*o.grace_period >= 0 && *o.grace_period < 1e9), "grace_period",
          fmt::format(" expects a number of seconds, found {}", o.grace_period.value_or(0)));
  require(!o.multi_gpu || has_gpu(), "multi_gpu", ": no GPU found on this machine; leave it out to run on the CPU");
}

/// Variables of the shell that the ranks will not see: as under accelerate launch, flags and the file decide.
void note_overridden(LaunchPlan& plan) {
  const auto settings = config::settings_of(plan.accelerate);
  const auto variables = config::to_environment(plan.accelerate);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const auto& [name, value] = variables[i];
    const char* own = std::getenv(name.c_str());
    const bool is_kept = name == "ACCELERATE_MIXED_PRECISION" && !plan.names_mixed_precision;
    if (own == nullptr || *own == '\0' || is_kept || config::detail::equal_ignoring_case(own, value)) continue;
    plan.warnings.push_back(fmt::format("the environment's {}={} has no effect: the launch says {} (--{}, or the file)",
                                        name, own, value, settings[i].first));
  }
}

void add_notes(const OptionTable& flags, LaunchPlan& plan) {
  for (std::string& note : flags.notes()) plan.notes.push_back(std::move(note));
  if (!has_gpu() && !plan.accelerate.use_cpu) plan.notes.push_back("no GPU found: running on the CPU");
  if ((plan.accelerate.use_cpu || !has_gpu()) && plan.accelerate.fsdp.offload_params) {
    plan.notes.push_back("fsdp_offload_params: parameters are in host memory already");
  }
}

void find_command(const Tasks& tasks, LaunchPlan& plan) {
  const std::string list = fmt::format("{}", fmt::join(tasks.names, ", "));
  if (plan.options.command.empty()) {
    throw ConfigError(fmt::format("nothing to launch: name a task ({}) or a program after the flags", list));
  }
  const std::string& name = plan.options.command[0];
  plan.args = plan.options.command;
  for (const std::string& task : tasks.names) {
    if (task != name) continue;
    plan.program = tasks.program;
    plan.is_task = true;
    plan.args.insert(plan.args.begin(), "tessera");
    return;
  }
  plan.program = find_program(name);
  if (!plan.program.empty()) return;
  if (name.ends_with(".py")) {
    throw ConfigError(
        fmt::format("'{0}' is not executable; start a Python program as 'tessera launch ... python {0}'", name));
  }
  throw ConfigError(fmt::format("'{}' is neither a task ({}) nor a program that can be found and executed{}", name,
                                list, did_you_mean(name, tasks.names)));
}

}  // namespace

OutputOptions output_of(const LaunchOptions& options) {
  return {.tee_stdout = (options.tee & 1) != 0, .tee_stderr = (options.tee & 2) != 0, .log_dir = options.log_dir};
}

OptionTable launch_table(LaunchOptions& options, config::AccelerateInput& accelerate) {
  OptionTable table("tessera launch", "starts one process for each rank and watches over them");
  add_options(table, options, accelerate);
  table.example("--config_file fsdp_config.yaml --num_processes 2 sft sft_flags.yaml");
  return table;
}

std::string launch_help(const Tasks& tasks, const std::string& form) {
  LaunchOptions options;
  config::AccelerateInput accelerate;
  OptionTable table = launch_table(options, accelerate);
  (void)table.parse({form});
  const std::string list = fmt::format("\nTasks: {}\n", fmt::join(tasks.names, ", "));
  return table.help() + (form == "--help" ? list : "");
}

std::optional<LaunchPlan> plan_launch(const std::vector<std::string>& words, const Tasks& tasks) {
  const std::vector<std::string> args = with_flags_in_front(words, tasks);
  LaunchPlan plan;
  config::AccelerateInput scratch;
  OptionTable flags = launch_table(plan.options, scratch);
  config::Problems problems;
  if (flags.parse(args, problems) == config::ParseResult::kHelp) return std::nullopt;
  const bool is_parsed = problems.empty();
  problems.attempt([&] { read_settings(args, flags, plan); });
  check_options(plan, problems);
  if (is_parsed) problems.attempt([&] { find_command(tasks, plan); });  // else a bad flag's value may stand there
  if (is_parsed)
    problems.attempt([&] { require_room(ranks_here(plan.accelerate), output_of(plan.options), own_limits()); });
  problems.throw_all();
  if (!plan.options.log_dir.empty()) ensure_writable_folder(plan.options.log_dir);
  add_notes(flags, plan);
  note_overridden(plan);
  const config::AccelerateConfig& a = plan.accelerate;
  if (a.num_machines > 1) {
    const int here = ranks_here(a), first = a.machine_rank * here;
    plan.notes.push_back(
        fmt::format("machine {} of {}: ranks {} to {} of {} run here; the first machine shows the output",
                    a.machine_rank, a.num_machines, first, first + here - 1, a.num_processes));
    if (!environment("TESSERA_SECRET")) {
      plan.notes.push_back(
          "TESSERA_SECRET is not set: whoever reaches the ranks' ports could take part; for trusted networks only");
    }
  }
  CoreRequest request{ranks_here(a), plan.options.num_cpu_threads_per_process, a.enable_cpu_affinity};
  if (!a.use_cpu) {
    const bool chosen = a.gpu_ids && *a.gpu_ids != "all";
    request.beside = cpus_beside_gpus(request.ranks, chosen ? a.gpu_ids : environment("CUDA_VISIBLE_DEVICES"));
  }
  plan.cores = plan_cores(request, usable_cpus());
  for (const std::string& warning : plan.cores.warnings) plan.warnings.push_back(warning);
  return plan;
}

}  // namespace tessera::launch
