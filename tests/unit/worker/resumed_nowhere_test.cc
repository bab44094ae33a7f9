// A run that is to go on from a checkpoint that is not there says so before it looks at anything else.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "worker/tasks.h"

namespace tessera::worker {
namespace {

using Arguments = std::vector<std::string>;

class ResumedNowhere : public ::testing::TestWithParam<const char*> {
 protected:
  /// What the task says of a model and data that are not there either.
  std::string said(const std::string& checkpoint) const {
    const std::string name = GetParam(), nowhere = folder_.path() + "/nowhere";
    Arguments args = {"--model_name_or_path",     nowhere,   "--output_dir", folder_.path() + "/out",
                      "--resume_from_checkpoint", checkpoint};
    args.insert(args.end(), {name == "summarize" ? "--data_dir" : "--dataset_name", nowhere});
    std::ostringstream out, err;
    for (const auto& task : tasks()) {
      if (task.name != name) continue;
      try {
        task.function(args, out, err);
      } catch (const CheckpointError& e) {
        EXPECT_EQ(out.str() + err.str(), "");
        return e.what();
      } catch (const std::exception& e) {
        return std::string("another error: ") + e.what();
      }
    }
    return "none";
  }

  const test::TempFolder folder_{"resumed_nowhere"};
};

TEST_P(ResumedNowhere, IsTheFirstThingThatIsSaid) {
  const auto out = folder_.path() + "/out";
  EXPECT_EQ(said("true"), "--resume_from_checkpoint true: no complete checkpoint in '" + out + "'");
  EXPECT_EQ(said(out + "/checkpoint-7").find("cannot go on from '" + out + "/checkpoint-7': "), 0u);
  EXPECT_FALSE(std::filesystem::exists(out));
  std::filesystem::create_directories(out + "/checkpoint-7");
  const auto text = said(out);  // a run's folder, not one of its checkpoints
  EXPECT_NE(text.find("has no manifest.json"), std::string::npos) << text;
  EXPECT_NE(text.find("(there is " + out + "/checkpoint-7)"), std::string::npos) << text;
  EXPECT_EQ(said("auto").find("another error: "), 0u) << "it may begin anew";
}

INSTANTIATE_TEST_SUITE_P(EachTask, ResumedNowhere,
                         ::testing::Values("sft", "seq2seq", "summarize", "classify", "dpo", "orpo", "cpo", "kto",
                                           "reward"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace tessera::worker
