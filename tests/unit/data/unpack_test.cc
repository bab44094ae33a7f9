// Data files that are compressed: the same rows, or an error.
#include "data/unpack.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/file.h"
#include "data/row_source.h"
#include "data/text_pair.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

const std::string kTwoRows = "{\"text\": \"one\"}\n{\"text\": \"two, two, two\"}\n";

std::string bytes_of(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

/// The two rows, packed by Python's gzip, bz2 and lzma, by zstd -19 and lz4.
const std::map<std::string, std::string>& packed_rows() {
  static const std::map<std::string, std::string> all{
      {".gz", bytes_of("1f8b0800000000000203ab562a49ad2851b25250cacf4b55aae5aa86f34bcaf3751460045006001"
                       "89cc56e2a000000")},
      {".bz2", bytes_of("425a683931415926535976e9e0880000135980001050040010020184ca20002129a9a69a64d080"
                        "68030820a2305748a2f83f9b7822450d260e7c5dc914e14241dba78220")},
      {".xz", bytes_of("fd377a585a000004e6d6b4460200210116000000742fe5a3e0002900215d003d888a86948813e0f"
                       "38724b7683609cc4c77525eaa817707c1192011ce3ff419a000000000ad483fff60e6a00e00013d"
                       "2a4334d5911fb6f37d010000000004595a")},
      {".zst", bytes_of("28b52ffd242a0d0100c07b2274657874223a20226f6e65227d0a74776f2c20227d0a020028449b6"
                        "d2e013f44fe68")},
      {".lz4", bytes_of("04224d186440a726000000f6017b2274657874223a20226f6e65227d0a1000f00174776f2c20747"
                        "76f2c2074776f227d0a000000005fd26361")}};
  return all;
}

class Unpack : public ::testing::Test {
 protected:
  Unpack() { ::setenv("XDG_CACHE_HOME", (folder_.path() + "/cache").c_str(), 1); }
  ~Unpack() override { ::unsetenv("XDG_CACHE_HOME"); }
  std::string put(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  test::TempFolder folder_{"unpack"};
};

TEST_F(Unpack, TheRowsOfACompressedFileAreThoseInside) {
  for (const auto& [ending, bytes] : packed_rows()) {
    const std::string file = put("rows.jsonl" + ending, bytes);
    const auto source = open_rows(file, "");
    SourceRow row;
    ASSERT_TRUE(source->next(row)) << ending;
    EXPECT_EQ(row.json, R"({"text": "one"})") << ending;
    ASSERT_TRUE(source->next(row)) << ending;
    EXPECT_EQ(where(row), file + ":2");  // the name that the user knows
    EXPECT_FALSE(source->next(row)) << ending;
    EXPECT_EQ(read_file(unpacked(file)), kTwoRows);
  }
}

TEST_F(Unpack, StreamsThatWereJoinedAreReadAsOne) {
  for (const auto& [ending, bytes] : packed_rows()) {
    const std::string padding(8, '\0');
    EXPECT_EQ(read_file(unpacked(put("two.jsonl" + ending, bytes + bytes))), kTwoRows + kTwoRows) << ending;
    EXPECT_EQ(read_file(unpacked(put("padded.jsonl" + ending, bytes + padding))), kTwoRows) << ending;
    EXPECT_THROW(unpacked(put("more.jsonl" + ending, bytes + "more")), DataError) << ending;
  }
}

TEST_F(Unpack, WhatIsCutShortOrDamagedIsAnErrorAndNeverOtherRows) {
  const auto text_of = [&](const std::string& ending, const std::string& bytes) {
    unpack(put("rows.jsonl" + ending, bytes), folder_.path() + "/rows.jsonl");
    return read_file(folder_.path() + "/rows.jsonl");
  };
  for (const auto& [ending, bytes] : packed_rows()) {
    for (std::size_t end = 0; end < bytes.size(); ++end)
      EXPECT_THROW(text_of(ending, bytes.substr(0, end)), DataError) << ending << " of " << end << " bytes";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x21);
      try {
        EXPECT_EQ(text_of(ending, damaged), kTwoRows) << ending << ", byte " << i;  // a date, say, in the header
      } catch (const DataError&) {
      }
    }
  }
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << "nothing half-written stays behind";
}

TEST_F(Unpack, TheMessageNamesTheFileAndWhatItShouldBe) {
  const std::string file = put("rows.csv.xz", "text,label\na,1\n");
  try {
    (void)open_rows(file, "");
    FAIL() << "no error";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()), file + ": the .xz file is damaged, or not in this format");
  }
}

TEST_F(Unpack, AFileThatChangedIsUnpackedAnew) {
  const std::string file = put("rows.jsonl.gz", packed_rows().at(".gz"));
  const std::string before = unpacked(file);
  EXPECT_EQ(unpacked(file), before);
  put("rows.jsonl.gz", packed_rows().at(".gz") + packed_rows().at(".gz"));
  EXPECT_EQ(read_file(unpacked(file)), kTwoRows + kTwoRows);
  EXPECT_EQ(unpacked(folder_.path() + "/rows.jsonl"), folder_.path() + "/rows.jsonl")
      << "plain files stay where they are";
}

TEST_F(Unpack, TheValidationFileBesideATrainingFileMayBeCompressedToo) {
  for (const char* name : {"rows_train.jsonl.gz", "rows_validation.jsonl.gz"}) put(name, packed_rows().at(".gz"));
  ReadOptions options;
  options.text_column = options.label_column = "text";
  const auto splits = read_splits({.name = folder_.path() + "/rows_train.jsonl.gz", .config = {}}, options, {});
  EXPECT_EQ(splits.train.size(), 2U);
  EXPECT_EQ(splits.validation.size(), 2U);
}

}  // namespace
}  // namespace tessera::data
