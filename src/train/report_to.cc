#include "train/report_to.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <ctime>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr const char* kFile = "jsonl:";

}  // namespace

std::vector<std::string> report_words() {
  return {"tensorboard", "html", "wandb", "mlflow", "all", "none"};
}

ReportTo read_report_to(const std::vector<std::string>& words) {
  ReportTo to;
  for (const std::string& word : words) {
    const bool all = word == "all";
    if (word == "none") continue;
    if (all || word == "tensorboard") to.tensorboard = true;
    if (all || word == "html") to.html = true;
    if (all || word == "tensorboard" || word == "html") continue;
    if (word == "wandb" || word == "mlflow") {
      to.trackers.push_back(word);
    } else if (word.starts_with(kFile) && word.size() > 6) {
      to.metrics_file = word.substr(6);
    } else {
      throw ConfigError(fmt::format("--report_to '{}' is not known; there are jsonl:FILE, {}. Other trackers can read "
                                    "metrics.jsonl: one JSON object a row",
                                    word, fmt::join(report_words(), ", ")),
                        "report_to");
    }
  }
  return to;
}

std::string tensorboard_folder(const std::string& logging_dir, const std::string& output_dir) {
  if (!logging_dir.empty()) return logging_dir;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char time[32] = {}, host[256] = {};
  std::strftime(time, sizeof(time), "%b%d_%H-%M-%S", &local);
  ::gethostname(host, sizeof(host) - 1);
  return output_dir + "/runs/" + time + "_" + host;
}

std::string import_command(const std::string& tracker, const std::string& metrics_file) {
  const std::string begin = tracker == "wandb" ? "wandb.init()" : "mlflow.start_run()";
  const std::string log = tracker == "wandb" ? "wandb.log" : "mlflow.log_metrics";
  return fmt::format(
      "python -c 'import json, sys, {0}; {1}; [{2}({{k: v for k, v in r.items() if isinstance(v, (int, float))}}, "
      "step=r.get(\"step\")) for r in map(json.loads, open(sys.argv[1]))]' '{3}'",
      tracker, begin, log, metrics_file);
}

}  // namespace tessera::train
