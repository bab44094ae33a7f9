// A run with its page, and the command that makes one of several runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"

namespace tessera {
namespace {

using nlohmann::json;
using test::Finished;
using test::Words;
using test::operator+;

class Reports : public ::testing::Test {
 protected:
  Finished train(const std::string& out, const Words& flags) const {
    return test::run(Words{TESSERA_BINARY, "launch", "--num_processes", "2", "sft", "--model_name_or_path", in("model"),
                           "--dataset_name", test::kTinyChat, "--splits", "train,test", "--use_peft_lora", "true",
                           "--max_steps", "4", "--logging_steps", "1", "--output_dir", in(out)} +
                     flags);
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  test::TempFolder folder_{"reports"};
};

TEST_F(Reports, ARunWritesItsSettingsAndItsPageAndSeveralRunsShareOne) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", test::kTinyChat, in("model")}).exit_code, 0);
  const Finished first =
      train("a", {"--report_to", "html", "--eval_strategy", "steps", "--eval_steps", "2", "--eval_generate", "1"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string page = read_file(in("a/report.html"));
  for (const char* part : {"finished, 4 steps", "What is a", "expected", "planned", "measured at most", "the program",
                           "forward and backward", "preparation", "eval_steps", "fsdp_sharding_strategy"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  const json settings = json::parse(read_file(in("a/run.json")));
  EXPECT_EQ(settings["command"], "tessera sft");
  EXPECT_EQ(settings["flags"]["max_steps"], "4");
  EXPECT_FALSE(settings["flags"].contains("learning_rate")) << "it was not given";
  EXPECT_EQ(settings["launch"]["num_processes"], 2);

  ASSERT_EQ(train("b", {"--learning_rate", "0.01"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(in("b/report.html"))) << "nobody asked for it";
  const Finished both =
      test::run({TESSERA_BINARY, "report", in("a") + "/", in("b"), "--output", in("pages/both.html")});
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.out, "report written to " + in("pages/both.html") + "\n");
  const std::string compared = read_file(in("pages/both.html"));
  for (const std::string& run : {in("a"), in("b")}) EXPECT_SAYS(compared, run + " loss\"");
  EXPECT_SAYS(compared, "<tr class=\"differs\"><td>learning_rate</td>");
  const Finished alone = test::run({TESSERA_BINARY, "report", in("b")});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_TRUE(std::filesystem::exists(in("b/report.html")));

  const Finished none = test::run({TESSERA_BINARY, "report", in("model")});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_SAYS(none.err, "holds no metrics.jsonl and no trainer_state.json");
}

}  // namespace
}  // namespace tessera
