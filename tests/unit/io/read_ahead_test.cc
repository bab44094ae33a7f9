#include "io/read_ahead.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "support/few_threads.h"
#include "support/temp_folder.h"

namespace tessera::io {
namespace {

TEST(ReadAhead, ReadsTheSameWithFewerThreadsOrNone) {
  const test::TempFolder folder("read_ahead");
  std::string bytes(20 << 20, '\0');  // several requests
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 24);
  write_file_atomically(folder.path() + "/file", bytes);
  const auto file = std::make_shared<const InputFile>(folder.path() + "/file");
  for (const int threads : {0, 1, 2}) {
    std::string read(bytes.size(), '\0');
    const test::FewThreads few(threads);
    ReadAhead ahead({{file, 0, bytes.size()}});
    ahead.read(*file, 0, read.data(), read.size());
    EXPECT_TRUE(read == bytes) << threads;
  }
}

}  // namespace
}  // namespace tessera::io
