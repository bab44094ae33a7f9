#include "train/changed_flags.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/temp_folder.h"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

TEST(ChangedFlags, NamesWhatARunThatGoesOnHasOtherwise) {
  const test::TempFolder folder("changed_flags");
  const Json flags = {{"lora_alpha", "64"}, {"dataset_name", "d.jsonl"}, {"resume_from_checkpoint", "true"}};
  CheckpointOptions options;
  options.output_dir = folder.path();
  options.resume_from_checkpoint = "true";
  EXPECT_EQ(changed_flags(options, {{"flags", flags}}), "") << "no run.json";
  const auto with = [&](const std::string& text) {
    write_file_atomically(folder.path() + "/run.json", text);
    return changed_flags(options, {{"flags", flags}});
  };
  EXPECT_EQ(with(Json{{"flags", flags}}.dump()), "");
  EXPECT_EQ(with(Json{{"flags", {{"lora_alpha", "16"}, {"dataset_name", "d.jsonl"}, {"optim", "sgd"}}}}.dump()),
            "  Flags that the run had otherwise: --lora_alpha 64 (was 16), --optim not given (was sgd)\n");
  options.output_dir = "elsewhere";
  options.resume_from_checkpoint = folder.path() + "/checkpoint-4/";
  EXPECT_EQ(with(R"({"flags": {"dataset_name": "d.jsonl"}})"),
            "  Flags that the run had otherwise: --lora_alpha 64 (was not given)\n");
  options.resume_from_checkpoint = "";
  EXPECT_EQ(with("{\"flags\": {}}"), "") << "a new run";
  options.resume_from_checkpoint = "auto";
  options.output_dir = folder.path();
  for (const char* other : {"{", "[]", R"({"flags": 3})", "{}"}) EXPECT_EQ(with(other), "") << other;
}

}  // namespace
}  // namespace tessera::train
