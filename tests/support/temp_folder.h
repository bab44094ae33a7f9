#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace tessera::test {

/// An empty folder of this process, which goes with the object.
class TempFolder {
 public:
  explicit TempFolder(const std::string& name) : TempFolder(::testing::TempDir(), name) {}
  /// Beside the program: on a disk, as TMPDIR need not be.
  static TempFolder on_disk(const std::string& name) {
    return {std::filesystem::path(TESSERA_BINARY).parent_path() / "", name};
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  TempFolder(const std::filesystem::path& parent, const std::string& name)
      : path_(parent.string() + name + "_" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  std::string path_;
};

}  // namespace tessera::test
