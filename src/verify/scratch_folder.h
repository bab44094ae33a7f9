#pragma once
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tessera/base/error.h"

namespace tessera::verify {

/// A folder of this process that goes when it goes.
class ScratchFolder {
 public:
  ScratchFolder() : path_((std::filesystem::temp_directory_path() / "tessera_verify_XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) throw CheckpointError("cannot make the folder '" + path_ + "'", path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tessera::verify
