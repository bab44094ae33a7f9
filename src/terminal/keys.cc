#include "terminal/keys.h"

#include <unistd.h>

#include <cerrno>
#include <optional>

#include "base/utf8.h"

namespace tessera::terminal {
namespace {

constexpr char kEscape = '\x1b';

std::optional<char> next_byte(int terminal) {
  char c = 0;
  ssize_t n = 0;
  do {
    n = ::read(terminal, &c, 1);
  } while (n < 0 && errno == EINTR);
  return n == 1 ? std::optional(c) : std::nullopt;
}

/// Ends of lines are "\n", and none is at the end.
std::string printable(std::string_view typed) {
  std::string out;
  for (char32_t before = 0; !typed.empty();) {
    const char32_t c = next_code_point(typed);
    if (c == '\r' || (c == '\n' && before != '\r'))
      out += '\n';
    else if (c == '\t' || (c >= 0x20 && (c < 0x7F || c > 0x9F)))
      append_utf8(c, out);
    before = c;
  }
  out.resize(out.find_last_not_of('\n') + 1);
  return out;
}

Key pasted(int terminal) {
  constexpr std::string_view kEnd = "\x1b[201~";
  std::string text;
  while (!text.ends_with(kEnd)) {
    const auto c = next_byte(terminal);
    if (!c) return {KeyKind::kGone, ""};
    text += *c;
  }
  text.resize(text.size() - kEnd.size());
  return {KeyKind::kText, printable(text)};
}

Key character(int terminal, char first) {
  std::string text{first};
  const auto lead = static_cast<unsigned char>(first);
  for (int more = lead >= 0xF8 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0; more > 0; --more)
    text += next_byte(terminal).value_or('\0');
  return find_malformed_utf8(text) ? Key{} : Key{KeyKind::kText, text};
}

/// Behind ESC [ or ESC O: numbers, then a letter or '~'. A second number says what was held; here Ctrl and Alt do the
/// same.
Key named_key(int terminal) {
  std::string numbers;
  char end = 0;
  for (bool more = true; more;) {
    const auto c = next_byte(terminal);
    if (!c) return {KeyKind::kGone, ""};
    end = *c;
    more = end >= ' ' && end < '@';
    if (more) numbers += end;
  }
  const bool is_held = numbers.find(';') != std::string::npos;
  switch (end) {
    case 'A':
      return {KeyKind::kUp, ""};
    case 'B':
      return {KeyKind::kDown, ""};
    case 'C':
      return {is_held ? KeyKind::kWordRight : KeyKind::kRight, ""};
    case 'D':
      return {is_held ? KeyKind::kWordLeft : KeyKind::kLeft, ""};
    case 'c':
      return {KeyKind::kWordRight, ""};
    case 'd':
      return {KeyKind::kWordLeft, ""};
    case 'H':
      return {KeyKind::kHome, ""};
    case 'F':
      return {KeyKind::kEnd, ""};
    case 'M':
      return {KeyKind::kEnter, ""};
    case '~':
      break;
    default:
      return {};
  }
  const std::string key = numbers.substr(0, numbers.find(';'));
  if (key == "200") return pasted(terminal);
  if (key == "1" || key == "7") return {KeyKind::kHome, ""};
  if (key == "4" || key == "8") return {KeyKind::kEnd, ""};
  if (key == "3") return {is_held ? KeyKind::kCutWordRight : KeyKind::kDelete, ""};
  return {};
}

Key behind_escape(int terminal) {
  const auto c = next_byte(terminal);
  if (!c) return {KeyKind::kGone, ""};
  switch (*c) {
    case '[':
    case 'O':
      return named_key(terminal);
    case 'b':
      return {KeyKind::kWordLeft, ""};
    case 'f':
      return {KeyKind::kWordRight, ""};
    case 'd':
      return {KeyKind::kCutWordRight, ""};
    case '\b':
    case '\x7f':
      return {KeyKind::kCutWordLeft, ""};
    case '\r':
    case '\n':
      return {KeyKind::kNewline, ""};
    default:
      return {};
  }
}

constexpr char ctrl(char letter) {
  return static_cast<char>(letter - 'A' + 1);
}

}  // namespace

Key read_key(int terminal) {
  const auto c = next_byte(terminal);
  if (!c) return {KeyKind::kGone, ""};
  switch (*c) {
    case '\r':
    case '\n':
      return {KeyKind::kEnter, ""};
    case '\t':
      return {KeyKind::kText, "\t"};
    case '\b':
    case '\x7f':
      return {KeyKind::kBackspace, ""};
    case kEscape:
      return behind_escape(terminal);
    case ctrl('A'):
      return {KeyKind::kHome, ""};
    case ctrl('B'):
      return {KeyKind::kLeft, ""};
    case ctrl('C'):
      return {KeyKind::kInterrupt, ""};
    case ctrl('D'):
      return {KeyKind::kEndOfInput, ""};
    case ctrl('E'):
      return {KeyKind::kEnd, ""};
    case ctrl('F'):
      return {KeyKind::kRight, ""};
    case ctrl('G'):
      return {KeyKind::kCancel, ""};
    case ctrl('K'):
      return {KeyKind::kCutToEnd, ""};
    case ctrl('L'):
      return {KeyKind::kClearScreen, ""};
    case ctrl('N'):
      return {KeyKind::kDown, ""};
    case ctrl('P'):
      return {KeyKind::kUp, ""};
    case ctrl('R'):
      return {KeyKind::kSearch, ""};
    case ctrl('U'):
      return {KeyKind::kCutToBegin, ""};
    case ctrl('W'):
      return {KeyKind::kCutSpaced, ""};
    case ctrl('Y'):
      return {KeyKind::kYank, ""};
    case ctrl('Z'):
      return {KeyKind::kSuspend, ""};
    default:
      return static_cast<unsigned char>(*c) < ' ' ? Key{} : character(terminal, *c);
  }
}

}  // namespace tessera::terminal
