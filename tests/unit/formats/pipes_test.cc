// What reads the headers of files refuses what would keep it waiting for ever.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/weight_index.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(Headers, NothingThatReadsThemWaitsForAPipe) {
  const test::TempFolder folder("headers");
  const std::string file = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { read_safetensors_header(file); }, [&] { read_gguf_header(file); }, [&] { read_weight_map(file); }}) {
    try {
      read();
      FAIL() << "a pipe was read";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("found a named pipe"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tessera
