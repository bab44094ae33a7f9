// Tensors of a model's folder that its config.json does not ask for are named when the model is put together.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/temp_folder.h"
#include "tessera/comm/communicator.h"
#include "unit/tasks/adapted_llama.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

const std::string kLlamaFolder = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/base_llama";

std::vector<std::string> notes_about(const AssembleOptions& options) {
  std::vector<std::string> notes;
  comm::run_threads(1, [&](const auto& group) { notes = assemble(options, group).notes; });
  return notes;
}

TEST(UnusedWeights, AreNamed) {
  const test::TempFolder temp("unused_weights");
  const std::string folder = temp.path() + "/model";
  fs::copy(kLlamaFolder, folder);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto source = io::open_weights(kLlamaFolder);
  for (const auto& info : source->tensors()) {
    tensors.emplace_back(info.name, io::read_tensor(*source, info.name));
    if (info.name.ends_with("_proj.weight"))
      tensors.emplace_back(info.name.substr(0, info.name.size() - 6) + "bias", at::ones({info.shape[0]}));
  }
  io::write_safetensors(folder + "/model.safetensors", tensors);
  for (const bool adapted : {false, true}) {
    auto options =
        adapted ? adapted_llama({{"peft_type", "LORA"}, {"target_modules", "all-linear"}}) : AssembleOptions();
    options.model_folder = folder;
    const auto notes = notes_about(options);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0].find("Some weights of the model checkpoint at " + folder +
                            " were not used when initializing LlamaForCausalLM: model.layers.0.mlp.down_proj.bias, "),
              0u)
        << notes[0];
    EXPECT_NE(notes[0].find(" and 9 more"), std::string::npos) << notes[0];
  }
}

TEST(UnusedWeights, AreNoneInFoldersOfTheReferenceStack) {
  int folders = 0;
  const std::string goldens = std::string(TESSERA_TEST_DATA) + "/goldens/";
  for (const char* family : {"A_models", "B_train", "C_quant", "J_peft"}) {
    for (const auto& folder : fs::directory_iterator(goldens + family)) {
      const auto path = folder.path().string();
      if (!fs::exists(path + "/config.json") || !fs::exists(path + "/model.safetensors")) continue;
      AssembleOptions options{.model_folder = path};
      const auto config = nlohmann::json::parse(read_text_file(path + "/config.json"));
      if (config.value("architectures", nlohmann::json::array()).dump().find("SequenceClassification") !=
          std::string::npos)
        options.classifier = models::ClassifierHead{};
      EXPECT_EQ(notes_about(options), std::vector<std::string>()) << path;
      ++folders;
    }
  }
  EXPECT_GT(folders, 25);
}

}  // namespace
}  // namespace tessera::tasks
