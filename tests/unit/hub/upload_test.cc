// Commits to a Hub on this machine.
#include "hub/upload.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/hub_server.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

using test::HubServer;

class Uploads : public ::testing::Test {
 protected:
  Uploads() {
    settings_.endpoint = server_.url();
    settings_.token = "hf_secret";
    settings_.first_wait = std::chrono::milliseconds(1);
    settings_.stall = std::chrono::seconds(5);
    what_ = {.id = "org/mine", .message = "Model save", .files = {}};
    add("config.json", "{\"a\": 1}");
    add("deep/model.safetensors", large_);
    add("empty.txt", "");
  }
  void add(const std::string& path, const std::string& bytes) {
    const std::string file = folder_.path() + "/" + std::to_string(what_.files.size());
    std::ofstream(file, std::ios::binary) << bytes;
    what_.files.push_back({path, file});
  }
  std::string error() {
    try {
      upload(what_, settings_);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  test::TempFolder folder_{"hub_upload"};
  HubServer server_;
  Settings settings_;
  Upload what_;
  const std::string large_ = std::string(40'000, 'x') + std::string(30'001, 'y');
};

TEST_F(Uploads, OneCommitHoldsSmallAndLargeFiles) {
  const std::string page = upload(what_, settings_);
  EXPECT_TRUE(page.starts_with(server_.url() + "/org/mine/commit/")) << page;
  const auto files = server_.files("models/org/mine");
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files.at("config.json").bytes, "{\"a\": 1}");
  EXPECT_FALSE(files.at("config.json").is_large);
  EXPECT_EQ(files.at("deep/model.safetensors").bytes, large_);
  EXPECT_TRUE(files.at("deep/model.safetensors").is_large);
  EXPECT_EQ(files.at("empty.txt").bytes, "");
  for (const auto& r : server_.requests()) EXPECT_EQ(r.authorization, r.at_storage ? "" : "Bearer hf_secret") << r.path;
  EXPECT_EQ(server_.count("POST", "/verify"), 1);
}

TEST_F(Uploads, WhatIsStoredIsNotSentAgainAndTheRepositoryStays) {
  upload(what_, settings_);
  server_.forget_requests();
  add("new.txt", "more");
  upload(what_, settings_);
  EXPECT_EQ(server_.count("PUT", ""), 0);
  EXPECT_EQ(server_.files("models/org/mine").size(), 4u);
}

TEST_F(Uploads, LargeFilesGoInPartsWhereTheHubAsksForThem) {
  server_.set_part_size(20'000);
  upload(what_, settings_);
  EXPECT_EQ(server_.count("PUT", "/part/"), 4);
  EXPECT_EQ(server_.files("models/org/mine").at("deep/model.safetensors").bytes, large_);
}

TEST_F(Uploads, ANameAloneIsOfTheTokensAccount) {
  what_.id = "mine";
  what_.is_private = true;
  upload(what_, settings_);
  EXPECT_EQ(server_.files("models/someone/mine").size(), 3u);
  for (const auto& r : server_.requests())
    if (r.path == "/api/repos/create") {
      EXPECT_SAYS(r.body, "\"private\":true");
    }
}

TEST_F(Uploads, ABranchIsMade) {
  what_.revision = "v/1";
  upload(what_, settings_);
  EXPECT_EQ(server_.count("POST", "/branch/v%2F1"), 1);
  EXPECT_EQ(server_.count("POST", "/commit/v%2F1"), 1);
}

TEST_F(Uploads, WhatTheHubIgnoresIsNotInTheCommit) {
  add("ignored.txt", "x");
  upload(what_, settings_);
  EXPECT_EQ(server_.files("models/org/mine").size(), 3u);
}

TEST_F(Uploads, StorageThatFailsForAMomentIsTriedAgain) {
  int failures = 0;
  server_.set_fault([&](const HubServer::Request& r) -> std::optional<std::string> {
    return r.method == "PUT" && ++failures < 3 ? std::optional(HubServer::answer(500, "")) : std::nullopt;
  });
  upload(what_, settings_);
  EXPECT_EQ(server_.files("models/org/mine").at("deep/model.safetensors").bytes, large_);
}

TEST_F(Uploads, WithoutTheRightTokenNothingIsCommitted) {
  settings_.token.clear();
  EXPECT_SAYS(error(), "the token in HF_TOKEN may not write there");
  EXPECT_TRUE(server_.files("models/org/mine").empty());
}

TEST_F(Uploads, EveryFailedStepIsNamedAndNothingIsCommitted) {
  const std::pair<const char*, const char*> steps[] = {{"/api/repos/create", "the creation of 'org/mine'"},
                                                       {"/preupload/", "how files are sent"},
                                                       {"/objects/batch", "where large files go"},
                                                       {"/upload/", "'deep/model.safetensors'"},
                                                       {"/commit/", "the commit"}};
  for (const auto& [path, says] : steps) {
    server_.set_fault([&, part = std::string(path)](const HubServer::Request& r) -> std::optional<std::string> {
      const bool is_it = r.path.find(part) != std::string::npos;
      return is_it ? std::optional(HubServer::answer(400, "[]", {"X-Error-Message: no"})) : std::nullopt;
    });
    EXPECT_SAYS(error(), says);
    EXPECT_SAYS(error(), "(it says: no)");
    EXPECT_TRUE(server_.files("models/org/mine").empty());
  }
}

TEST_F(Uploads, AnswersThatAreNoneOfAHubAreErrors) {
  for (const char* path : {"/preupload/", "/objects/batch"})
    for (const char* json : {"", "[]", "{}", R"({"files": [{"path": "other"}], "objects": [{"oid": "other"}]})",
                             R"({"files": 1, "objects": 1})", R"({"files": [], "objects": []})"}) {
      server_.set_fault([&, part = std::string(path)](const HubServer::Request& r) -> std::optional<std::string> {
        const bool is_it = r.path.find(part) != std::string::npos;
        return is_it ? std::optional(HubServer::answer(200, json)) : std::nullopt;
      });
      const std::string message = error();
      EXPECT_TRUE(test::contains(message, "does not answer as a Hub does")) << path << json << message;
    }
}

TEST_F(Uploads, AnAnswerThatNestsDeeperThanTheStackIsAnError) {
  constexpr std::size_t kLevels = 400'000;
  server_.set_fault([&](const HubServer::Request& r) -> std::optional<std::string> {
    if (r.path.find("/preupload/") == std::string::npos) return std::nullopt;
    return HubServer::answer(200, "{\"files\": " + std::string(kLevels, '[') + std::string(kLevels, ']') + "}");
  });
  EXPECT_SAYS(error(), "JSON that nests deeper than 500 levels");
}

}  // namespace
}  // namespace tessera::hub
