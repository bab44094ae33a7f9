#include "train/report_to.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

TEST(ReportTo, KnowsItsWords) {
  const ReportTo all = read_report_to({"all"});
  EXPECT_TRUE(all.tensorboard && all.html);
  const ReportTo none = read_report_to({"none"});
  EXPECT_FALSE(none.tensorboard || none.html);
  const ReportTo several = read_report_to({"html", "jsonl:rows:1.jsonl", "wandb"});
  EXPECT_TRUE(several.html && !several.tensorboard);
  EXPECT_EQ(several.metrics_file, "rows:1.jsonl");
  EXPECT_EQ(several.trackers, std::vector<std::string>{"wandb"});
}

TEST(ReportTo, NamesAWordThatItDoesNotKnow) {
  for (const std::string word : {"clearml", "jsonl:", "jsonl", "HTML", ""}) {
    try {
      read_report_to({"html", word});
      ADD_FAILURE() << word;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find("--report_to '" + word + "' is not known"), std::string::npos) << e.what();
    }
  }
}

TEST(ReportTo, CommandsNameTheTrackerAndTheFile) {
  EXPECT_EQ(
      import_command("mlflow", "out/metrics.jsonl"),
      "python -c 'import json, sys, mlflow; mlflow.start_run(); [mlflow.log_metrics({k: v for k, v in r.items() if "
      "isinstance(v, (int, float))}, step=r.get(\"step\")) for r in map(json.loads, open(sys.argv[1]))]' "
      "'out/metrics.jsonl'");
  EXPECT_NE(import_command("wandb", "m").find("import json, sys, wandb; wandb.init(); [wandb.log({"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::train
