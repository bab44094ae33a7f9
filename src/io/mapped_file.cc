#include "io/mapped_file.h"

#include <ATen/ops/from_blob.h>

namespace tessera::io {

MappedFile::MappedFile(const InputFile& file, const std::string& remedy)
    : bytes_(file.map()),
      size_(static_cast<std::size_t>(file.size_bytes())),
      pages_({at::from_blob(bytes_.get(), {static_cast<std::int64_t>(size_)}, at::kByte)},
             {.opened = "when it was opened", .if_lost = remedy, .if_written = remedy}) {}

void MappedFile::check() const {
  pages_.check();
  pages_.check_unchanged();
}

}  // namespace tessera::io
