#include "io/mapped_file.h"

namespace tessera::io {

MappedFile::MappedFile(const InputFile& file, const std::string& remedy)
    : bytes_(file.map()),
      size_(static_cast<std::size_t>(file.size_bytes())),
      pages_({file.path(), file.descriptor(), bytes_, size_},
             {.opened = "when it was opened", .if_lost = remedy, .if_written = remedy}) {}

void MappedFile::check() const {
  pages_.check();
  pages_.check_unchanged();
}

}  // namespace tessera::io
