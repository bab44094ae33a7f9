#include "data/mapped_text.h"

namespace tessera::data {

MappedText::MappedText(const std::string& file)
    : name_(file), file_(io::InputFile(file), kRowsInPlace), text_(file_.text()) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (file_.read([&] { return text_.starts_with(kByteOrderMark); })) text_.remove_prefix(kByteOrderMark.size());
}

}  // namespace tessera::data
