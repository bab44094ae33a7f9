#include "tasks/sentences.h"

#include "base/utf8.h"
#include "text/unicode.h"

namespace tessera::tasks {
namespace {

bool ends_sentence(char32_t c) {
  return c == '.' || c == '!' || c == '?';
}
bool closes(char32_t c) {
  return c == '"' || c == '\'' || c == ')' || c == ']' || c == '}' || c == U'’' || c == U'”';
}

}  // namespace

std::string sentence_a_line(std::string_view text) {
  std::string out;
  bool is_end = false;    // behind a sentence's last character
  bool is_space = false;  // in the white space behind it
  while (!text.empty()) {
    const char32_t c = next_code_point(text);
    if (is_end && text::is_whitespace(c)) {
      is_space = true;
      continue;
    }
    if (is_space) out += '\n';
    is_end = ends_sentence(c) || (is_end && !is_space && closes(c));
    is_space = false;
    append_utf8(c, out);
  }
  return out;
}

}  // namespace tessera::tasks
