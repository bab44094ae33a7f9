#pragma once
#include <cstdint>
#include <string>

namespace tessera {

/// The name of a file that this process holds open: others may take it away, or give it to another file.
class HeldName {
 public:
  HeldName() = default;
  /// Of the file that `descriptor` stands for, or (-1) of the one that has the name now. CheckpointError names the
  /// path.
  explicit HeldName(std::string path, int descriptor = -1);
  /// Empty while the name leads to that file; else "was removed" or "was replaced by another file".
  std::string loss() const;
  /// CheckpointError when it does not: what is written to the file comes to nothing.
  void check() const;

 private:
  std::string path_;
  std::uint64_t device_ = 0, inode_ = 0;
};

}  // namespace tessera
