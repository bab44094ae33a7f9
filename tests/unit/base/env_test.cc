#include "base/env.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace tessera {
namespace {

TEST(ExpandedPath, AsksTheSystemWhereHomeIsWhereNoVariableSaysIt) {
  const std::string home = environment("HOME").value_or("");
  const passwd* user = ::getpwuid(::getuid());
  ASSERT_NE(user, nullptr);
  const std::string on_record = user->pw_dir;
  ::setenv("HOME", "/elsewhere", 1);
  EXPECT_EQ(expanded_path("~/x"), "/elsewhere/x");
  ::unsetenv("HOME");
  EXPECT_EQ(expanded_path("~/x"), on_record + "/x");
  if (!home.empty()) ::setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace tessera
