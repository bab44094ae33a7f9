#pragma once
// Parameters that are views of mapped files, of one unit: which pages they lie in, and what may happen to those while
// somebody computes with them.
//
// Note [Files that change]
//   A page that cannot be read (the file was cut, the disk fails) would end the process with SIGBUS. Here it, and what
//   follows it in the view, reads as zeros from then on, and check() throws: whoever computes with a view calls it
//   before others see a result.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tensor {

/// What messages say of a file's use.
struct FileUse {
  std::string opened = "when the model was loaded";
  std::string if_lost =
      "The weights are read where they lie in it: restore the file and start again; a training goes on from its last "
      "checkpoint";
  std::string if_written =
      "The weights are read again in each step: put other weights in another folder, or under this name by renaming, "
      "and go on from the last checkpoint";
};

/// A file that its user has mapped whole.
struct WholeFile {
  std::string path;
  int descriptor;
  std::shared_ptr<std::byte> bytes;  // nothing where the file is empty
  std::size_t size;
};

class FilePages {
 public:
  /// Of these, contiguous in memory, those that are views of a file that has a name. Keeps them alive.
  explicit FilePages(const std::vector<at::Tensor>& views, FileUse use = {});
  explicit FilePages(const WholeFile& file, FileUse use = {});
  ~FilePages();
  FilePages(const FilePages&) = delete;
  FilePages& operator=(const FilePages&) = delete;

  /// Addresses, multiples of a page's size: the first and the last page may hold bytes of others.
  struct Range {
    std::uintptr_t begin, end;
  };
  /// In order, with gaps between them.
  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }

  /// They will be read from end to end, again and again, and are more than fits into memory.
  void expect_passes() const;
  /// They leave this process's memory until they are read again; what was written there since is lost.
  void drop() const;
  /// The same for those that lie wholly within these bytes of it.
  void drop(const std::byte* begin, const std::byte* end) const;

  /// DataError that names the file and the place if a page could not be read. Costs a load where none ever was.
  void check() const;
  /// DataError if a file has been written to since this was made. One that another has replaced under its name is still
  /// there for its readers.
  void check_unchanged() const;

 private:
  struct Guard;
  struct File;
  FileUse use_;
  std::vector<at::Tensor> views_;
  std::shared_ptr<std::byte> bytes_;
  std::vector<Range> ranges_;
  std::vector<File> files_;
  std::vector<Guard*> guards_;  // one for each range; they stay when this goes, for those that come next
};

}  // namespace tessera::tensor
