#include "base/folder.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(Folder, IsTheOneThatAPathNamesOrThisOne) {
  EXPECT_EQ(parent_folder("a/b"), "a");
  EXPECT_EQ(parent_folder("b"), ".");
}

TEST(Folder, OneThatItsFileSystemCannotFlushIsNoError) {
  flush_folder(testing::TempDir());
  flush_folder("/proc");  // EINVAL
  EXPECT_THROW(flush_folder("/nowhere"), CheckpointError);
}

}  // namespace
}  // namespace tessera
