// A checkpoint's list of files: what has changed since is named.
#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/crc32c.h"
#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

class ManifestOfAFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "manifest_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/sub");
    write_file_atomically(folder_ + "/a", "first file");
    write_file_atomically(folder_ + "/sub/b", "second file");
    write_manifest(folder_, 7, 2, {});
  }
  void TearDown() override { fs::remove_all(folder_); }

  void flip(const std::string& name, std::size_t at) {
    std::string bytes = read_file(folder_ + "/" + name);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
  }
  std::string message() {
    try {
      read_manifest(folder_);
    } catch (const CheckpointError& e) {
      return e.what();
    }
    return "no error";
  }

  std::string folder_;
};

TEST_F(ManifestOfAFolder, ListsEveryFile) {
  const Manifest m = read_manifest(folder_);
  EXPECT_EQ(m.step, 7);
  EXPECT_EQ(m.world_size, 2);
  ASSERT_EQ(m.files.size(), 2u);
  EXPECT_EQ(m.files[1].name, "sub/b");
  EXPECT_EQ(m.files[1].bytes, 11);
  EXPECT_EQ(find_damage(folder_, Depth::kChecksums), "");
}

TEST_F(ManifestOfAFolder, IsNotWrittenWhenAFileOfItIsGoneOrCut) {
  const std::vector<FileRecord> known = {{folder_ + "/a", 10, crc32c("first file", 10), 0}};
  EXPECT_NO_THROW(write_manifest(folder_, 8, 2, known));
  for (const bool cut : {true, false}) {
    if (cut)
      fs::resize_file(folder_ + "/a", 9);
    else
      fs::remove(folder_ + "/a");
    try {
      write_manifest(folder_, 9, 2, known);
      ADD_FAILURE() << "expected an error";
    } catch (const CheckpointError& e) {
      EXPECT_NE(std::string(e.what()).find(cut ? "/a' was written and is shorter" : "/a' was written and is gone"),
                std::string::npos)
          << e.what();
    }
    EXPECT_EQ(read_manifest(folder_).step, 8);
  }
}

TEST_F(ManifestOfAFolder, OfAFolderThatDoesNotExistSaysSo) {
  fs::remove(folder_ + "/manifest.json");
  EXPECT_NE(message().find("has no manifest.json: it was not written by tessera"), std::string::npos) << message();
  fs::remove_all(folder_);
  EXPECT_EQ(message(), "'" + folder_ + "' does not exist");
}

TEST_F(ManifestOfAFolder, NamesAFileWhoseBytesHaveChanged) {
  flip("sub/b", 3);
  EXPECT_EQ(find_damage(folder_, Depth::kSizes), "");
  EXPECT_NE(find_damage(folder_, Depth::kChecksums).find("'sub/b' has the checksum"), std::string::npos);
}

TEST_F(ManifestOfAFolder, NamesAMissingAndACutFile) {
  fs::resize_file(folder_ + "/a", 4);
  EXPECT_EQ(find_damage(folder_, Depth::kSizes), "'a' has 4 bytes, 10 were written");
  fs::remove(folder_ + "/a");
  EXPECT_NE(find_damage(folder_, Depth::kSizes).find("'a' is missing"), std::string::npos);
}

TEST_F(ManifestOfAFolder, IsComparedWithChecksumsOfParts) {
  const Manifest m = read_manifest(folder_);
  std::vector<FileRecord> parts = {{"sub/b", 6, crc32c("second", 6), 0},
                                   {"a", 4, crc32c("file", 4), 6},
                                   {"sub/b", 5, crc32c(" file", 5), 6},
                                   {"a", 6, crc32c("first ", 6), 0}};
  EXPECT_EQ(find_damage(m, parts), "");
  parts[2].crc32c = crc32c(" File", 5);
  EXPECT_EQ(find_damage(m, parts).rfind("'sub/b' has the checksum", 0), 0u);
  parts.pop_back();
  EXPECT_EQ(find_damage(m, parts), "'a' was not read as a whole");
}

// Every bit: a change is found, or it changes nothing that is read (white space between tokens).
TEST_F(ManifestOfAFolder, NoFlippedBitInItGoesUnnoticed) {
  const std::string good = read_file(folder_ + "/manifest.json");
  int unnoticed = 0;
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    try {
      const Manifest m = parse_manifest(bad, "m");
      EXPECT_EQ(m.step, 7);
      EXPECT_EQ(m.files.size(), 2u);
      ++unnoticed;
    } catch (const CheckpointError&) {
    }
  }
  EXPECT_LT(unnoticed, 200);
}

TEST_F(ManifestOfAFolder, RefusesOtherVersionsAndPathsOutside) {
  EXPECT_EQ(message(), "no error");
  std::ofstream(folder_ + "/manifest.json") << R"({"format":"tessera-checkpoint","version":9})";
  EXPECT_NE(message().find("format version 9, this program reads versions 1 to 1"), std::string::npos) << message();
  for (const char* version : {"6.6e95", "1.5", "-1", "99999999999", "\"1\""}) {
    std::ofstream(folder_ + "/manifest.json") << R"({"format":"tessera-checkpoint","version":)" << version << "}";
    EXPECT_NE(message().find("'version' is no whole number in range"), std::string::npos) << message();
  }
  std::ofstream(folder_ + "/manifest.json") << R"({"format":"other"})";
  EXPECT_NE(message().find("is not a manifest of tessera"), std::string::npos) << message();
  fs::remove(folder_ + "/manifest.json");
  EXPECT_NE(message().find("has no manifest.json"), std::string::npos) << message();
}

TEST_F(ManifestOfAFolder, ThatNestsDeeperThanTheStackIsDamaged) {
  constexpr std::size_t kLevels = 1'000'000;
  std::ofstream(folder_ + "/manifest.json") << R"({"format":"tessera-checkpoint","version":1,"files":)"
                                            << std::string(kLevels, '[') << std::string(kLevels, ']') << "}";
  EXPECT_NE(message().find("is damaged: "), std::string::npos) << message();
  EXPECT_NE(message().find("JSON that nests deeper than 500 levels"), std::string::npos) << message();
}

}  // namespace
}  // namespace tessera::checkpoint
