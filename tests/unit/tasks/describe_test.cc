// What a task prints about its model and its memory.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "peft/methods/lora.h"
#include "support/temp_folder.h"
#include "tasks/init_model.h"
#include "tasks/job.h"

namespace tessera::tasks {
namespace {

class Describe : public testing::Test {
 protected:
  /// A model of so many layers; adapters make every second layer look different.
  Assembled model(int layers, const std::string& adapted) {
    const std::string from = folder_.path() + "/config", to = folder_.path() + "/model";
    auto config = nlohmann::json::parse(read_file(std::string(TESSERA_TEST_DATA) + "/tiny_chat/config.json"));
    config["num_hidden_layers"] = layers;
    std::filesystem::create_directories(from);
    write_file_atomically(from + "/config.json", config.dump());
    std::ostringstream quiet;
    EXPECT_EQ(init_model({from, to, "--overwrite"}, quiet, quiet), 0);
    auto lora = std::make_shared<peft::Lora>();
    lora->target_regex = adapted;
    return assemble({.model_folder = to, .method = lora}, comm::connect());
  }
  static std::string described(const Assembled& model, std::optional<bool> print_model) {
    std::ostringstream out;
    describe(model, print_model, out);
    return out.str();
  }
  test::TempFolder folder_{"describe"};
};

TEST_F(Describe, EqualLayersAreOne) {
  const Assembled m = model(6, ".*layers.2.self_attn.q_proj");
  const std::string text = m.sharded->to_string();
  EXPECT_NE(text.find("(0-1): 2 x LlamaDecoderLayer("), std::string::npos) << text;
  EXPECT_NE(text.find("(2): LlamaDecoderLayer("), std::string::npos) << text;
  EXPECT_NE(text.find("(3-5): 3 x LlamaDecoderLayer("), std::string::npos) << text;
}

TEST_F(Describe, AModelOfMoreThan200LinesIsPrintedWhenAskedFor) {
  const Assembled m = model(16, ".*layers.(0|2|4|6|8|10|12|14).self_attn.q_proj");
  const std::string line = " lines; --print_model true prints them\n";
  EXPECT_NE(described(m, std::nullopt).find(line), std::string::npos) << described(m, std::nullopt);
  EXPECT_NE(described(m, true).find("LlamaDecoderLayer("), std::string::npos);
  EXPECT_EQ(described(m, false).find(line), std::string::npos);
  const Assembled small = model(16, ".*q_proj");
  EXPECT_NE(described(small, std::nullopt).find("(0-15): 16 x "), std::string::npos);
}

TEST_F(Describe, MemoryIsALineOfWordsWithUnits) {
  const auto ranks = nlohmann::ordered_json::parse(
      R"([{"peak_resident_mib": 300, "proportional_mib": 200}, {"peak_resident_mib": 20480, "proportional_mib": 12000}])");
  EXPECT_EQ(memory_line(ranks),
            "memory: rank 0 200.0 MiB (peak 300.0 MiB), rank 1 11.72 GiB (peak 20.0 GiB); together 11.91 GiB");
  EXPECT_EQ(memory_line(nlohmann::ordered_json::array({ranks[0]})), "memory: rank 0 200.0 MiB (peak 300.0 MiB)");
}

}  // namespace
}  // namespace tessera::tasks
