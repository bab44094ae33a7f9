// What --gradient_checkpointing_kwargs may say.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "train/training_arguments.h"

namespace tessera::train {
namespace {

CheckpointingKwargs kwargs_of(const std::string& json) {
  TrainingArguments arguments;
  arguments.gradient_checkpointing_kwargs = json;
  return checkpointing_kwargs(arguments);
}

TEST(CheckpointingKwargs, OfTrainerHaveAMeaningAndOfTorchChangeNothing) {
  for (const char* plain : {"", "null", "{}", R"({"use_reentrant": false, "determinism_check": "none"})"}) {
    EXPECT_EQ(kwargs_of(plain).every_n_layers, 1) << plain;
    EXPECT_FALSE(kwargs_of(plain).offload) << plain;
  }
  const auto both = kwargs_of(R"({"every_n_layers": 3, "offload": true})");
  EXPECT_EQ(both.every_n_layers, 3);
  EXPECT_TRUE(both.offload);
}

TEST(CheckpointingKwargs, ThatMakeNoSenseAreErrors) {
  for (const char* bad :
       {"[]", "2", R"({"every_n_layers": 0})", R"({"every_n_layers": 1.5})", R"({"every_n_layers": true})",
        R"({"offload": 1})", R"({"use_reentrant": "no"})", R"({"every_n_layer": 2})"})
    EXPECT_THROW(kwargs_of(bad), ConfigError) << bad;
}

}  // namespace
}  // namespace tessera::train
