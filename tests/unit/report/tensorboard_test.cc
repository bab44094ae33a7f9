#include "report/tensorboard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes)
    for (int shift : {4, 0}) out += "0123456789abcdef"[static_cast<unsigned char>(c) >> shift & 15];
  return out;
}

TEST(TensorBoard, ChecksumsAreMaskedCrc32c) {
  // CRC-32C of "123456789" is 0xE3069283 (RFC 3720); masked as TFRecord does it.
  const std::uint32_t crc = 0xE3069283u;
  EXPECT_EQ(masked_crc32c("123456789"), (crc >> 15 | crc << 17) + 0xA282EAD8u);
}

// The bytes that tensorboard 2.21.0's RecordWriter and protocol buffers write for these events.
TEST(TensorBoard, RecordsAreThoseOfTheTensorboardPackage) {
  EXPECT_EQ(hex(tf_record(version_event(1.5))),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(hex(tf_record(scalar_event("train/loss", 2.5, 300, 1234567890.25))),
            "2100000000000000017becf609000090b48065d24110ac022a130a110a0a747261696e2f6c6f737315000020406f325485");
  EXPECT_EQ(hex(tf_record(start_event(6, 1.5))), "0f000000000000006d532b0909000000000000f83f10063a0208019517399e");
  EXPECT_EQ(
      hex(tf_record(text_event("args", "# hi", 7, 2.0))),
      "2f000000000000006d5d1d5009000000000000004010072a220a200a0461726773420e08071204120208014204232068694a080a060a04"
      "7465787490a9d556");
}

TEST(TensorBoard, AFileHoldsTheVersionAndWhatWasWrittenAtOnce) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "tensorboard_test" / "runs";
  std::filesystem::remove_all(folder.parent_path());
  TensorBoardWriter writer(folder.string());
  const auto name = std::filesystem::path(writer.path()).filename().string();
  EXPECT_TRUE(name.starts_with("events.out.tfevents.")) << name;
  EXPECT_EQ(std::count(name.begin(), name.end(), '.') >= 6, true) << name;
  const auto before = read_file(writer.path()).size();
  EXPECT_EQ(before, 40u);
  writer.scalar("eval/loss", std::numeric_limits<double>::quiet_NaN(), -1);
  EXPECT_GT(read_file(writer.path()).size(), before);
  TensorBoardWriter other(folder.string());
  EXPECT_NE(other.path(), writer.path());
}

TEST(TensorBoard, SaysWhenItsFolderCannotBeWritten) {
  EXPECT_THROW(TensorBoardWriter("/proc/tessera/runs"), CheckpointError);
}

}  // namespace
}  // namespace tessera::report
