#include "hub/name.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "hub/model_folder.h"
#include "hub/settings.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

TEST(RepositoryNames, AreThoseOfHuggingfaceHub) {
  for (const char* text : {"gpt2", "org/name", "Org-1/na.me_2", "a/b@v1.0", "a/b@refs/pr/3"})
    EXPECT_TRUE(parse_name(Kind::kModel, text)) << text;
  for (const char* text : {"", "a/b/c", "./a", "/a", "a/", "/a/b", "../a", "a..b/c", "a--b/c", "-a/b", "a/b.", "a b/c",
                           "a/b.git", "a/b@", "a/b@../x", "a/b@/x", "~/a", "a/b@x//y"})
    EXPECT_FALSE(parse_name(Kind::kModel, text)) << text;
  EXPECT_EQ(parse_name(Kind::kModel, "a/b@refs/pr/3")->revision, "refs/pr/3");
  EXPECT_EQ(text_of(*parse_name(Kind::kModel, "a/b")), "a/b");
}

TEST(RepositoryNames, WhatEndsLikeAFileIsNotAskedFor) {
  const auto said = [](const std::string& text) {
    try {
      return text_of(name_of_missing(Kind::kDataset, text));
    } catch (const DataError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(said("org/name"), "org/name");
  EXPECT_EQ(said("rows.jsonl@main"), "rows.jsonl");
  EXPECT_SAYS(said("rows.jsonl"), "'rows.jsonl' does not exist. The Hub is not asked for what ends like a file");
  EXPECT_SAYS(said("org/m.gguf"), "'org/m.gguf@main' asks it");
  EXPECT_SAYS(said("a/b/c"), "neither a file or folder here nor a name on the Hub");
}

/// The variables that settings come from, put back at the end.
class HubSettings : public ::testing::Test {
 protected:
  HubSettings() {
    for (const char* name : kNames) {
      const char* value = ::getenv(name);
      before_.emplace_back(name, value == nullptr ? std::optional<std::string>() : value);
      ::unsetenv(name);
    }
    ::setenv("HF_HOME", folder_.path().c_str(), 1);
  }
  ~HubSettings() override {
    for (const auto& [name, value] : before_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }

  static constexpr const char* kNames[] = {
      "HF_HOME",       "HF_HUB_CACHE",   "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT",   "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",
      "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",  "XDG_CACHE_HOME"};
  test::TempFolder folder_{"hub_settings"};
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST_F(HubSettings, ComeFromTheVariablesOfHuggingfaceHub) {
  auto s = settings_from_environment();
  EXPECT_EQ(s.cache, folder_.path() + "/hub");
  EXPECT_EQ(s.endpoint, "https://huggingface.co");
  EXPECT_EQ(s.token, "");
  EXPECT_FALSE(s.offline);
  std::ofstream(folder_.path() + "/token") << "hf_of_the_file\n";
  EXPECT_EQ(settings_from_environment().token, "hf_of_the_file");
  ::setenv("HF_TOKEN", " hf_of_the_variable ", 1);
  ::setenv("HF_HUB_CACHE", "/c", 1);
  ::setenv("HF_ENDPOINT", "http://mirror/", 1);
  ::setenv("TRANSFORMERS_OFFLINE", "true", 1);
  s = settings_from_environment();
  EXPECT_EQ(s.token, "hf_of_the_variable");
  EXPECT_EQ(s.cache, "/c");
  EXPECT_EQ(s.endpoint, "http://mirror");
  EXPECT_TRUE(s.offline);
}

// huggingface_hub's order, and its reading of ~ and of variables in paths.
TEST_F(HubSettings, OlderNamesCountWhereTodaysAreNotSetAndPathsAreExpanded) {
  ::setenv("HUGGINGFACE_HUB_CACHE", "/older", 1);
  ::setenv("HUGGING_FACE_HUB_TOKEN", "hf_older", 1);
  EXPECT_EQ(settings_from_environment().cache, "/older");
  EXPECT_EQ(settings_from_environment().token, "hf_older");
  ::setenv("HF_HUB_CACHE", "/newer", 1);
  ::setenv("HF_TOKEN", "hf_newer", 1);
  EXPECT_EQ(settings_from_environment().cache, "/newer");
  EXPECT_EQ(settings_from_environment().token, "hf_newer");
  const std::string home = ::getenv("HOME");
  ::setenv("HF_HUB_CACHE", "~/a~b", 1);
  EXPECT_EQ(settings_from_environment().cache, home + "/a~b");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  ::setenv("HF_HUB_CACHE", "$XDG_CACHE_HOME/${XDG_CACHE_HOME}y/$NO_SUCH_NAME/$", 1);
  EXPECT_EQ(settings_from_environment().cache, "/x//xy/$NO_SUCH_NAME/$");
  ::unsetenv("HF_HUB_CACHE");
  ::unsetenv("HUGGINGFACE_HUB_CACHE");
  ::setenv("HF_HOME", "${XDG_CACHE_HOME}/hf", 1);
  EXPECT_EQ(settings_from_environment().cache, "/x/hf/hub");
  ::unsetenv("HF_HOME");
  EXPECT_EQ(settings_from_environment().cache, "/x/huggingface/hub");
}

TEST_F(HubSettings, ATokenThatWouldEndItsHeaderIsRefusedAndNotShown) {
  ::setenv("HF_TOKEN", "hf_a\r\nX: y", 1);
  try {
    settings_from_environment();
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_FALSE(test::contains(e.what(), "hf_a"));
  }
}

TEST_F(HubSettings, AnEndpointIsAnAddress) {
  ::setenv("HF_ENDPOINT", "huggingface.co", 1);
  EXPECT_THROW(settings_from_environment(), ConfigError);
}

TEST_F(HubSettings, AFolderOfThatNameWins) {
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  const std::string folder = folder_.path() + "/model";
  EXPECT_THROW(find_model_folder(folder), DataError);  // no name on the Hub: nobody is asked
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << "{}";
  EXPECT_EQ(find_model_folder(folder), folder);
  EXPECT_THROW(find_model_folder("org/none"), DataError);
}

TEST_F(HubSettings, APlaceWithoutAModelSaysWhatItIs) {
  const std::string cached = folder_.path() + "/models--org--name", file = folder_.path() + "/config.json";
  const auto said = [](const std::string& place) {
    try {
      return find_model_folder(place);
    } catch (const DataError& e) {
      return std::string(e.what());
    }
  };
  std::filesystem::create_directories(cached);
  EXPECT_SAYS(said(cached), "has neither a config.json, nor an adapter_config.json, nor a GGUF file");
  std::filesystem::create_directories(cached + "/snapshots/abc");
  EXPECT_SAYS(said(cached), "is a repository in the Hub's cache; name its snapshot '" + cached + "/snapshots/abc'");
  std::ofstream(file) << "{}";
  EXPECT_SAYS(said(file), "is a file; name the folder that it lies in");
  EXPECT_SAYS(said("~/model"), "The shell did not expand '~'");
}

TEST_F(HubSettings, ABaseThatAnAdapterNamesIsSaidToBeOne) {
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  const std::string adapter = folder_.path() + "/adapter";
  std::filesystem::create_directories(adapter);
  std::ofstream(adapter + "/adapter_config.json") << R"({"base_model_name_or_path": "org/none"})";
  try {
    find_model(adapter);
    FAIL();
  } catch (const DataError& e) {
    const std::string said = e.what();
    EXPECT_SAYS(said, "'org/none' is neither a file or folder here");
    EXPECT_SAYS(said, "the base that '" + adapter + "/adapter_config.json' names");
    EXPECT_SAYS(said, "--model BASE --adapter " + adapter);
  }
}

}  // namespace
}  // namespace tessera::hub
