#pragma once
// Where the reference values of each family lie, and what of them this program does not do.
//
// TESSERA_GOLDENS names a folder with the families A_models ... K_preference; without it the project's own copies are
// read. What a set needs beside it (tokenizers/<name>) lies in TESSERA_GOLDENS_DATA, or else in <set>/../data.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace tessera::test {

/// The set that the environment names; empty: the project's own.
inline std::string named_goldens() {
  const char* set = std::getenv("TESSERA_GOLDENS");
  return set ? set : "";
}

/// The folder of a family, "A_models" for example. A set need not have every family.
inline std::filesystem::path goldens(const std::string& family) {
  static const std::filesystem::path own = TESSERA_TEST_DATA;
  static const std::map<std::string, std::string> places = {{"D_tokenizers", "tokenizers"}, {"E_chat", "chat"},
                                                            {"F_optim", "optim"},           {"G_sft", "sft"},
                                                            {"H_fsdp", "fsdp_runs"},        {"I_wikihow", "wikihow"}};
  if (const auto set = named_goldens(); !set.empty()) return std::filesystem::path(set) / family;
  const auto place = places.find(family);
  return place == places.end() ? own / "goldens" / family : own / place->second;
}

/// The files of the tokenizer that the reference calls `name`: a folder or a file.
inline std::string goldens_tokenizer(const std::string& name) {
  const std::filesystem::path own = std::filesystem::path(TESSERA_TEST_DATA) / "tokenizers";
  if (const auto set = named_goldens(); !set.empty()) {
    const char* data = std::getenv("TESSERA_GOLDENS_DATA");
    return ((data ? std::filesystem::path(data) : std::filesystem::path(set) / ".." / "data") / "tokenizers" / name)
        .string();
  }
  if (name == "t5") return (own / "t5_spiece.model").string();
  return (own / "reference" / (name == "chatml_tiny" ? "chatml" : name) / "tokenizer.json").string();
}

inline nlohmann::json read_golden(const std::filesystem::path& file) {
  return nlohmann::json::parse(std::ifstream(file));
}

/// Names of the entries of a folder that end with `suffix`, without it, in order; empty where there is no folder.
inline std::vector<std::string> names_in(const std::filesystem::path& folder, const std::string& suffix) {
  std::vector<std::string> names;
  if (!std::filesystem::is_directory(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.size() > suffix.size() && name.ends_with(suffix))
      names.push_back(name.substr(0, name.size() - suffix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A test name of letters, digits and underscores.
inline std::string as_test_name(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

/// Prints what a set holds and this program does not do, once all tests have ended.
class NotSupported : public testing::EmptyTestEventListener {
 public:
  static void add(const std::string& what, const std::string& reason) { list().lines_.insert(what + ": " + reason); }
  void OnTestProgramEnd(const testing::UnitTest&) override {
    for (const auto& line : lines_) std::cout << "not supported: " << line << "\n";
  }

 private:
  static NotSupported& list() {
    static auto* list = [] {
      auto* fresh = new NotSupported;
      testing::UnitTest::GetInstance()->listeners().Append(fresh);  // which owns it
      return fresh;
    }();
    return *list;
  }
  std::set<std::string> lines_;
};

}  // namespace tessera::test
