#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <vector>

#include "base/crc32.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

std::uint32_t of(const std::string& text) {
  return crc32c(text.data(), text.size());
}

// RFC 3720, B.4.
TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(of("123456789"), 0xE3069283u);
  EXPECT_EQ(of(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(of(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(crc32c_text(of("123456789")), "e3069283");
}

// ISO 3309, as zip files have it.
TEST(Crc32, GivesThePublishedValueWhateverTheCut) {
  const std::string text = "123456789";
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32(text.data() + cut, text.size() - cut, crc32(text.data(), cut)), 0xCBF43926u) << cut;
}

TEST(Crc32c, PartsCombineToTheWhole) {
  std::vector<unsigned char> bytes(10'000);
  std::iota(bytes.begin(), bytes.end(), 0);
  const auto whole = crc32c(bytes.data(), bytes.size());
  for (const std::size_t cut : {0u, 1u, 7u, 4096u, 9999u, 10'000u}) {
    const auto a = crc32c(bytes.data(), cut), b = crc32c(bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(crc32c_combine(a, b, bytes.size() - cut), whole) << cut;
    EXPECT_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, a), whole) << cut;
  }
}

// Long inputs go 64 or 256 bytes at a time: whatever the length, and where they begin.
TEST(Crc32c, AnyCutOfALongInputGivesTheSame) {
  std::vector<unsigned char> bytes(100'000);
  std::uint32_t state = 1;
  for (auto& b : bytes) b = static_cast<unsigned char>((state = state * 1664525u + 1013904223u) >> 24);
  std::uint32_t by_byte = 0;
  for (const auto b : bytes) by_byte = crc32c(&b, 1, by_byte);
  EXPECT_EQ(crc32c(bytes.data(), bytes.size()), by_byte);
  for (const std::size_t cut :
       {1u, 15u, 63u, 64u, 65u, 128u, 255u, 256u, 257u, 320u, 50'001u, 99'744u, 99'936u, 99'937u}) {
    EXPECT_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, crc32c(bytes.data(), cut)), by_byte) << cut;
  }
}

TEST(Crc32c, OfAFileIsThatOfItsBytes) {
  const std::string path = testing::TempDir() + "crc32c_" + std::to_string(getpid());
  const std::string text(700'000, 'x');
  std::ofstream(path) << text;
  std::int64_t bytes = 0;
  EXPECT_EQ(crc32c_of_file(path, &bytes), of(text));
  EXPECT_EQ(bytes, 700'000);
  std::filesystem::remove(path);
  EXPECT_THROW(crc32c_of_file(path), DataError);
}

}  // namespace
}  // namespace tessera
