#include "data/mapped_text.h"

#include <fmt/format.h>

#include "data/unpack.h"
#include "tessera/base/error.h"

namespace tessera::data {

MappedText::MappedText(const std::string& file)
    : name_(file), file_(io::InputFile(unpacked(file)), kRowsInPlace), text_(file_.text()) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF", kUtf16Little = "\xFF\xFE", kUtf16Big = "\xFE\xFF";
  if (file_.read([&] { return text_.starts_with(kUtf16Little) || text_.starts_with(kUtf16Big); }))
    throw DataError(
        fmt::format("{0}: UTF-16, where UTF-8 is read; convert it: iconv -f UTF-16 -t UTF-8 {0} > NEW", file), file);
  if (file_.read([&] { return text_.starts_with(kByteOrderMark); })) text_.remove_prefix(kByteOrderMark.size());
}

}  // namespace tessera::data
