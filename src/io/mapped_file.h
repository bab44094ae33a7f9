#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "io/input_file.h"
#include "tensor/file_pages.h"

namespace tessera::io {

/// The bytes of a whole file in place; the kernel brings in and drops its pages. A file that another process cuts or
/// writes to meanwhile is an error of whoever reads: Note [Files that change] in tensor/file_pages.h.
class MappedFile {
 public:
  /// remedy: the end of such an error's message, a sentence without its full stop.
  MappedFile(const InputFile& file, const std::string& remedy);
  const std::byte* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.get()), size_}; }

  /// What `action` makes of the bytes, of which it keeps copies alone. DataError that names the file when it has
  /// changed since it was mapped, whatever `action` made of that or threw.
  template <class Action>
  auto read(const Action& action) const {
    try {
      auto made = action();
      check();
      return made;
    } catch (...) {
      check();
      throw;
    }
  }

 private:
  void check() const;
  std::shared_ptr<std::byte> bytes_;
  std::size_t size_;
  tensor::FilePages pages_;
};

}  // namespace tessera::io
