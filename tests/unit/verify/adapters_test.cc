// `tessera verify MODEL --adapter NAME=FOLDER ...`: rows that take different adapters of one model.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kSets = std::string(TESSERA_TEST_DATA) + "/goldens/";
const std::string kCombine = kSets + "J_peft/combine/";

/// The base model with PEFT's logits of rows whose adapters are these.
class VerifyAdapters : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "model.safetensors"})
      fs::create_symlink(kSets + "B_train/base_llama/" + name, folder_.path() + "/" + name);
    const auto batch = io::open_safetensors(kSets + "B_train/base_llama/batches.safetensors");
    const auto results = io::open_safetensors(kCombine + "results.safetensors");
    io::write_safetensors(folder_.path() + "/io.safetensors",
                          {{"input_ids", io::read_tensor(*batch, "step0.input_ids")},
                           {"attention_mask", io::read_tensor(*batch, "step0.attention_mask")},
                           {"logits", io::read_tensor(*results, "logits.mixed")}});
    rows_ = json::parse(read_file(kCombine + "expect.json")).at("mixed");
  }
  int run(const json& expect, std::vector<std::string> args) {
    std::ofstream(folder_.path() + "/expect.json") << expect;
    args.insert(args.begin(), {folder_.path(), "--logits_tolerance", "1e-4"});
    std::ostringstream out;
    return verify(args, out, out);
  }
  static std::string adapter(const std::string& name) { return name + "=" + kCombine + "adapters/" + name; }

  const test::TempFolder folder_{"verify_adapters"};
  json rows_;
};

TEST_F(VerifyAdapters, EachRowTakesItsOwn) {
  const std::vector<std::string> all = {"--adapter",       adapter("first"), "--adapter",
                                        adapter("second"), "--adapter",      adapter("third")};
  EXPECT_EQ(run({{"adapter_names", rows_}}, all), 0);
  auto others = rows_;
  others[0].swap(others[1]);
  EXPECT_EQ(run({{"adapter_names", others}}, all), 1);
  EXPECT_EQ(run(json::object(), {"--adapter", adapter("first")}), 1) << "one adapter takes all rows";
}

TEST_F(VerifyAdapters, SayWhatIsMissing) {
  const std::vector<std::string> all = {"--adapter", adapter("first"), "--adapter", adapter("second")};
  EXPECT_THROW(run({{"adapter_names", {"first"}}}, all), DataError);
  EXPECT_THROW(run({{"adapter_names", rows_}}, all), ConfigError) << "'third' is not there";
  EXPECT_THROW(run({{"adapter_names", rows_}}, {"--adapter", "none=" + folder_.path()}), Error);
  std::ostringstream out;
  EXPECT_THROW(verify({kCombine, "--adapter", adapter("first")}, out, out), ConfigError) << "has its own";
}

}  // namespace
}  // namespace tessera::verify
