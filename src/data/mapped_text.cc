#include "data/mapped_text.h"

#include "io/input_file.h"

namespace tessera::data {

MappedText::MappedText(const std::string& file) : name_(file) {
  const io::InputFile input(file);
  if (input.size_bytes() == 0) return;
  bytes_ = input.map();
  text_ = {reinterpret_cast<const char*>(bytes_.get()), input.size_bytes()};
  if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
}

}  // namespace tessera::data
