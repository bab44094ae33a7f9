// Which of a folder's settings decide a generation: transformers' GenerationConfig.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "models/generation.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using Ids = std::vector<std::int64_t>;

class GenerationFiles : public testing::Test {
 protected:
  GenerationConfig read(const nlohmann::json& config, const nlohmann::json& own = nullptr) const {
    write_file_atomically(folder_.path() + "/config.json", config.dump());
    if (!own.is_null()) write_file_atomically(folder_.path() + "/generation_config.json", own.dump());
    ModelConfig model;
    model.eos_token_id = 2;
    model.pad_token_id = 5;
    return read_generation_config(folder_.path(), model);
  }
  test::TempFolder folder_{"generation_files"};
};

TEST_F(GenerationFiles, TheModelsConfigCountsWhereThereIsNoOther) {
  EXPECT_EQ(read(nlohmann::json::object()).eos_token_ids, Ids{2});
  EXPECT_EQ(read({{"eos_token_id", {3, 4}}}).eos_token_ids, (Ids{3, 4}));
  EXPECT_EQ(read({{"eos_token_id", nullptr}}).eos_token_ids, Ids());  // nothing ends a text
  const auto beside = read({{"eos_token_id", 3}, {"num_beams", 4}}, {{"eos_token_id", 7}});
  EXPECT_EQ(beside.eos_token_ids, Ids{7});
  EXPECT_EQ(beside.num_beams, 1);
  EXPECT_EQ(beside.pad_token_id, 7);  // the first end, where the file has no padding
}

TEST_F(GenerationFiles, AFileWithoutAnEndHasNone) {
  const auto c = read({{"eos_token_id", 3}}, {{"do_sample", true}});
  EXPECT_EQ(c.eos_token_ids, Ids());
  EXPECT_EQ(c.pad_token_id, 5);
}

TEST_F(GenerationFiles, NullSwitchesTheFilterOff) {
  EXPECT_EQ(read(nlohmann::json::object(), nlohmann::json::object()).top_k, 50);
  EXPECT_EQ(read(nlohmann::json::object(), {{"top_k", nullptr}}).top_k, 0);
}

TEST_F(GenerationFiles, WithoutALengthTwentyNewTokensFollow) {
  auto c = read(nlohmann::json::object());
  EXPECT_EQ(most_tokens(c, 30), 50);
  c.max_positions = 40;
  EXPECT_EQ(most_tokens(c, 30), 40);
  read_generation_json({{"max_length", 20}}, "arguments", c);
  EXPECT_EQ(most_tokens(c, 5), 20);
  EXPECT_EQ(most_tokens(read(nlohmann::json::object(), {{"max_length", 20}}), 5),
            25);  // what files have without a choice
  EXPECT_EQ(most_tokens(read(nlohmann::json::object(), {{"max_length", 21}}), 5), 21);
  EXPECT_EQ(most_tokens(read(nlohmann::json::object(), {{"max_new_tokens", 3}}), 5), 8);
}

TEST_F(GenerationFiles, TokensMayBeLists) {
  EXPECT_EQ(read({{"forced_eos_token_id", 3}}).forced_eos_token_ids, Ids{3});
  EXPECT_EQ(read({{"forced_eos_token_id", {3, 4}}}).forced_eos_token_ids, (Ids{3, 4}));
  EXPECT_EQ(read({{"decoder_start_token_id", {3, 4}}}).decoder_start_token_ids, (Ids{3, 4}));
  for (const char* key : {"forced_eos_token_id", "decoder_start_token_id"})
    EXPECT_THROW(read({{key, nlohmann::json::array()}}), ConfigError) << key;
}

}  // namespace
}  // namespace tessera::models
