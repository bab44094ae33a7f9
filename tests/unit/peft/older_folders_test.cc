// Adapter folders of older versions of PEFT, made of today's by what those wrote otherwise.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "peft/adapter_config.h"
#include "peft/methods/boft.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {
namespace {

/// A copy of a golden adapter whose configuration `change` has changed.
std::string changed(const std::string& name, const test::TempFolder& to,
                    const std::function<void(nlohmann::json&)>& change) {
  const std::string from = std::string(TESSERA_TEST_DATA) + "/goldens/J_peft/" + name + "/adapter_init";
  std::filesystem::copy(from, to.path(), std::filesystem::copy_options::recursive);
  auto config = nlohmann::json::parse(std::ifstream(from + "/adapter_config.json"));
  change(config);
  std::ofstream(to.path() + "/adapter_config.json") << config;
  return to.path();
}

/// The notes of reading it, one behind the other.
std::string notes_of(const std::string& folder) {
  std::vector<std::string> notes;
  read_adapter_config(folder, &notes);
  std::string all;
  for (const auto& note : notes) all += note + "\n";
  return all;
}

/// The adapter's tensors again, with `from` in their names replaced.
void rename_tensors(const std::string& folder, const std::string& from, const std::string& to) {
  const std::string file = folder + "/adapter_model.safetensors";
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  {
    const auto source = io::open_weights(file);
    for (const auto& info : source->tensors()) {
      auto name = info.name;
      if (const auto at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
      tensors.emplace_back(name, io::read_tensor(*source, info.name).clone());
    }
  }
  io::write_safetensors(file, tensors);
}

TEST(OlderFolders, ThoseOfTodaysPeftSayNothing) {
  for (const std::string name : {"llama_boft", "llama_boft_butterfly", "llama_oft", "llama_lokr", "llama_vera"}) {
    const test::TempFolder folder("todays_" + name);
    EXPECT_EQ(notes_of(changed(name, folder, [](auto&) {})), "") << name;
  }
}

TEST(OlderFolders, BoftHasOneFactorWherePeftTrainedOne) {
  const auto factors = [](const std::string& name) {
    const test::TempFolder folder(name);
    changed(name, folder, [](auto& config) { config["boft_n_butterfly_factor"] = 2; });
    return dynamic_cast<const Boft&>(*read_adapter_config(folder.path())).boft_n_butterfly_factor;
  };
  EXPECT_EQ(factors("llama_boft"), 1);
  EXPECT_EQ(factors("llama_boft_butterfly"), 2);
  const test::TempFolder folder("boft_note");
  const auto note = notes_of(changed("llama_boft", folder, [](auto& c) { c["boft_n_butterfly_factor"] = 2; }));
  EXPECT_NE(note.find("boft_n_butterfly_factor is 2"), std::string::npos) << note;
}

TEST(OlderFolders, AnotherSeriesOfOftIsSaid) {
  const auto note = [](const std::function<void(nlohmann::json&)>& change) {
    const test::TempFolder folder("oft");
    return notes_of(changed("llama_oft", folder, change));
  };
  EXPECT_NE(note([](auto& config) { config.erase("peft_version"); }).find("PEFT before 0.18"), std::string::npos);
  EXPECT_NE(note([](auto& config) { config["peft_version"] = "0.17.1"; }).find("PEFT before 0.18"), std::string::npos);
  EXPECT_EQ(note([](auto& config) { config["peft_version"] = "0.18.0.dev0@1234"; }), "");
  EXPECT_EQ(note([](auto& config) { config["peft_version"] = "1.0.0"; }), "");
  EXPECT_EQ(note([](auto& config) {
              config.erase("peft_version");
              config["use_cayley_neumann"] = false;
            }),
            "");
}

TEST(OlderFolders, OftOfOtherTensorsIsRefusedWithTheRemedy) {
  const test::TempFolder folder("oft_r");
  changed("llama_oft", folder, [](auto& config) { config.erase("use_cayley_neumann"); });
  rename_tensors(folder.path(), ".oft_R.weight", ".oft_r");
  try {
    read_adapter_config(folder.path());
    FAIL() << "no error";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("Merge it with PEFT 0.15"), std::string::npos) << e.what();
  }
}

TEST(OlderFolders, LoKrThatWasNotScaledIsSaid) {
  const auto note = [](int alpha) {
    const test::TempFolder folder("lokr");
    return notes_of(changed("llama_lokr", folder, [&](auto& config) {
      config["alpha"] = alpha;
      config.erase("rank_dropout_scale");
    }));
  };
  EXPECT_NE(note(8).find("did not scale it"), std::string::npos);
  EXPECT_EQ(note(2), "");  // r is 2
}

}  // namespace
}  // namespace tessera::peft
