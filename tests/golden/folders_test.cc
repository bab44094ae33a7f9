// Every folder of a set through `tessera verify`: on one process, and sharded over two, three and as many as the
// reference had.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/goldens.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

using test::Finished;

namespace fs = std::filesystem;
using nlohmann::json;

/// The families whose folders `tessera verify` knows.
const std::vector<std::string> kFamilies = {"A_models", "B_train", "C_quant", "H_fsdp", "J_peft", "K_preference"};

Finished verify(const std::string& folder, int ranks, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> command = {TESSERA_BINARY};
  if (ranks > 1) command.insert(command.end(), {"launch", "--cpu", "--num_processes", std::to_string(ranks)});
  command.insert(command.end(), {"verify", folder});
  command.insert(command.end(), flags.begin(), flags.end());
  return test::run(command, {{"OMP_NUM_THREADS", "1"}});
}

/// A folder with expected values of its own, or the weights of the folder above in another form.
bool is_verifiable(const fs::path& folder) {
  for (const char* file : {"expect.json", "expect_model.safetensors"})
    if (fs::exists(folder / file)) return true;
  return fs::exists(folder / "config.json") && fs::exists(folder.parent_path() / "io.safetensors");
}

struct Folder {
  std::string name, place;
};

void PrintTo(const Folder& folder, std::ostream* out) {
  *out << folder.name;
}

std::vector<Folder> folders() {
  std::vector<Folder> found;
  for (const auto& family : kFamilies) {
    const fs::path root = test::goldens(family);
    if (!fs::is_directory(root)) continue;
    // The runs of torch FSDP lie in the family's folder, tensors that other tests read in that of the codes.
    if (family != "C_quant" && is_verifiable(root)) found.push_back({family, root.string()});
    for (const auto& entry : fs::recursive_directory_iterator(root))
      if (entry.is_directory() && is_verifiable(entry.path()))
        found.push_back({family + "/" + fs::relative(entry.path(), root).string(), entry.path().string()});
  }
  std::sort(found.begin(), found.end(), [](const Folder& a, const Folder& b) { return a.name < b.name; });
  return found;
}

/// One, two and three, and what the folder's runs were made with. Those of torch FSDP cannot be played by others.
std::set<int> worlds(const fs::path& folder) {
  const json expect = fs::exists(folder / "expect.json") ? test::read_golden(folder / "expect.json") : json::object();
  std::set<int> worlds = {1, 2, 3};
  if (expect.contains("wrapping")) {
    worlds = {1};
    for (const auto& world : expect.at("settings").at("worlds")) worlds.insert(world.get<int>());
  }
  const std::string prefix = "rank_mean_";
  for (const auto& [key, value] : expect.items())
    if (key.starts_with(prefix)) worlds.insert(std::stoi(key.substr(prefix.size())));
  return worlds;
}

/// Prepared rows name a tokenizer, which lies elsewhere.
std::vector<std::string> tokenizer_of(const fs::path& folder) {
  const json expect = fs::exists(folder / "expect.json") ? test::read_golden(folder / "expect.json") : json::object();
  if (!expect.is_object() || !expect.contains("tokenizer") || !expect.contains("status")) return {};
  return {"--tokenizer", test::goldens_tokenizer(expect.at("tokenizer"))};
}

/// A set may lack families, but a folder that holds none of them is not a set.
TEST(SetGolden, HoldsFamiliesThatAreNotEmpty) {
  int families = 0;
  for (const char* family : {"A_models", "B_train", "C_quant", "D_tokenizers", "E_chat", "F_optim", "G_sft", "H_fsdp",
                             "I_wikihow", "J_peft", "K_preference"}) {
    const fs::path root = test::goldens(family);
    const bool there = fs::is_directory(root);
    families += there;
    if (there) {
      EXPECT_FALSE(fs::is_empty(root)) << root;
    } else {
      EXPECT_FALSE(test::named_goldens().empty()) << root << ": the project's own copies have every family";
      std::cout << "not in the set: " << family << "\n";
    }
  }
  EXPECT_GT(families, 0) << "no family in '" << test::named_goldens() << "' (TESSERA_GOLDENS)";
}

class FoldersGolden : public testing::TestWithParam<Folder> {};

TEST_P(FoldersGolden, EqualTheReferenceOnOneTwoThreeAndItsOwnRanks) {
  for (const int ranks : worlds(GetParam().place)) {
    const Finished r = verify(GetParam().place, ranks, tokenizer_of(GetParam().place));
    EXPECT_EQ(r.exit_code, 0) << ranks << " ranks\n" << r.out << r.err;
    EXPECT_NE(r.out.find("verified"), std::string::npos) << r.out;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FoldersGolden);
INSTANTIATE_TEST_SUITE_P(Set, FoldersGolden, testing::ValuesIn(folders()),
                         [](const auto& info) { return test::as_test_name(info.param.name); });

}  // namespace
}  // namespace tessera
