// What an adapter's folder holds and does not train is saved as it was read, whatever a run computes in.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

#include "checkpoint/pretrained.h"
#include "support/temp_folder.h"
#include "tessera/io/tensor_source.h"
#include "unit/tasks/adapted_llama.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

void save(const AssembleOptions& options, int world, const std::string& folder) {
  std::filesystem::create_directories(folder);
  comm::run_threads(world, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(options, group);
    checkpoint::save_adapter(*a.sharded, a.adapted(), {}, folder);
  });
}

class FrozenInAdapters : public testing::TestWithParam<const char*> {};

TEST_P(FrozenInAdapters, AreSavedAsTheyWereReadInABfloat16Run) {
  const test::TempFolder folder("frozen_in_adapters");
  const std::string first = folder.path() + "/first";
  const json targets = {"q_proj", "down_proj", "embed_tokens"};
  json keys = {
      {"peft_type", GetParam()}, {"r", 4}, {"save_projection", true}, {"target_modules", {"q_proj", "o_proj"}}};
  if (GetParam() == std::string("LORA")) keys = {{"peft_type", "LORA"}, {"r", 4}, {"target_modules", targets}};
  save(adapted_llama(keys), 1, first);
  const auto read = io::open_safetensors(first + "/adapter_model.safetensors");
  for (const int world : {1, 2}) {
    for (const bool is_new : {false, true}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << (is_new ? "new" : "loaded"));
      const std::string second = folder.path() + "/second";
      auto options = adapted_llama(keys);
      if (!is_new) options = {.model_folder = kLlama, .adapter_folder = first};
      options.fsdp.precision.param_dtype = at::kBFloat16;
      save(options, world, second);
      const auto written = io::open_safetensors(second + "/adapter_model.safetensors");
      ASSERT_EQ(written->tensors().size(), read->tensors().size());
      for (const auto& info : read->tensors()) {
        EXPECT_EQ(written->find(info.name)->dtype, at::kFloat) << info.name;
        EXPECT_TRUE(torch::equal(io::read_tensor(*written, info.name), io::read_tensor(*read, info.name))) << info.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, FrozenInAdapters, testing::Values("VERA", "RANDLORA", "LORA"));

}  // namespace
}  // namespace tessera::tasks
