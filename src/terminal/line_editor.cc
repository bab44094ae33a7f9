#include "terminal/line_editor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include "terminal/raw_terminal.h"

namespace tessera::terminal {
namespace {

struct Window {
  std::size_t columns = 80, rows = 24;
  bool operator==(const Window&) const = default;
};

Window window_of(int screen) {
  winsize size{};
  if (::ioctl(screen, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {std::max<std::size_t>(size.ws_col, 2), size.ws_row};
}

void write_all(int screen, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(screen, bytes.data(), bytes.size());
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR && errno != EAGAIN) return;  // the terminal is gone, which its reader finds out
  }
}

std::string up(std::size_t rows) {
  return rows == 0 ? "" : fmt::format("\x1b[{}A", rows);
}

bool has_input(int terminal, int wait_ms) {
  pollfd fd{terminal, POLLIN, 0};
  return ::poll(&fd, 1, wait_ms) > 0;
}

}  // namespace

Typed LineEditor::read(std::string_view prompt) {
  typed_.set("");
  drawn_ = {};
  place_ = history_.entries().size();
  std::optional<RawTerminal> raw(std::in_place, terminal_);
  while (true) {
    Key key = next_key(prompt);
    if (key.kind == KeyKind::kSearch) key = search();
    const bool is_empty = typed_.text().empty();
    switch (key.kind) {
      case KeyKind::kEnter:
        finish(prompt, "\r\n");
        return {Typed::How::kEntered, typed_.text()};
      case KeyKind::kInterrupt:
        finish(prompt, "^C\r\n");
        if (is_empty) return {Typed::How::kInterrupted, ""};
        typed_.set("");
        place_ = history_.entries().size();
        break;
      case KeyKind::kEndOfInput:
        if (!is_empty) {
          typed_.cut(typed_.right());
          break;
        }
        finish(prompt, "\r\n");
        return {};
      case KeyKind::kGone:
        return {};
      case KeyKind::kSuspend:
        finish(prompt, "\r\n");
        raw.reset();
        ::raise(SIGTSTP);
        raw.emplace(terminal_);
        break;
      default:
        obey(key);
    }
  }
}

Key LineEditor::next_key(std::string_view prompt) {
  constexpr int kLookMs = 200;  // how soon another size of the window is seen
  if (!has_input(terminal_, 0)) {
    Window window = window_of(screen_);
    draw(prompt);
    while (!has_input(terminal_, kLookMs)) {
      if (window == window_of(screen_)) continue;
      window = window_of(screen_);
      draw(prompt);
    }
  }
  return read_key(terminal_);
}

Key LineEditor::search() {
  const TypedText before = typed_;
  const auto& entries = history_.entries();
  std::string sought;
  std::size_t place = entries.size();
  bool is_found = true;
  // The newest entry with what is sought, of those before `end`.
  const auto look = [&](std::size_t end) {
    is_found = false;
    for (std::size_t i = end; i-- > 0 && !is_found;) {
      is_found = entries[i].find(sought) != std::string::npos;
      if (is_found) show_entry(place = i);
    }
  };
  while (true) {
    Key key = next_key(fmt::format("({} '{}') ", is_found ? "search" : "not found", sought));
    switch (key.kind) {
      case KeyKind::kText:
        sought += key.text;
        look(std::min(place + 1, entries.size()));
        break;
      case KeyKind::kBackspace: {
        TypedText shorter;
        shorter.set(sought);
        shorter.cut(shorter.left());
        sought = shorter.text();
        look(entries.size());
        break;
      }
      case KeyKind::kSearch:
        look(place);
        break;
      case KeyKind::kCancel:
      case KeyKind::kInterrupt:
        typed_ = before;
        place_ = entries.size();
        return {};
      default:
        return key;
    }
  }
}

void LineEditor::obey(const Key& key) {
  switch (key.kind) {
    case KeyKind::kText:
      typed_.insert(key.text);
      break;
    case KeyKind::kNewline:
      typed_.insert("\n");
      break;
    case KeyKind::kLeft:
      typed_.move(typed_.left());
      break;
    case KeyKind::kRight:
      typed_.move(typed_.right());
      break;
    case KeyKind::kWordLeft:
      typed_.move(typed_.word_left());
      break;
    case KeyKind::kWordRight:
      typed_.move(typed_.word_right());
      break;
    case KeyKind::kHome:
      typed_.move(typed_.line_begin());
      break;
    case KeyKind::kEnd:
      typed_.move(typed_.line_end());
      break;
    case KeyKind::kBackspace:
      typed_.cut(typed_.left());
      break;
    case KeyKind::kDelete:
      typed_.cut(typed_.right());
      break;
    case KeyKind::kCutToBegin:
      cut(typed_.line_begin());
      break;
    case KeyKind::kCutToEnd:
      cut(typed_.line_end());
      break;
    case KeyKind::kCutWordLeft:
      cut(typed_.word_left());
      break;
    case KeyKind::kCutWordRight:
      cut(typed_.word_right());
      break;
    case KeyKind::kCutSpaced:
      cut(typed_.spaced_left());
      break;
    case KeyKind::kYank:
      typed_.insert(taken_);
      break;
    case KeyKind::kUp:
      if (const auto above = typed_.above(); above != std::string::npos)
        typed_.move(above);
      else if (place_ > 0)
        show_entry(place_ - 1);
      break;
    case KeyKind::kDown:
      if (const auto below = typed_.below(); below != std::string::npos)
        typed_.move(below);
      else if (place_ < history_.entries().size())
        show_entry(place_ + 1);
      break;
    case KeyKind::kClearScreen:
      write_all(screen_, "\x1b[H\x1b[2J");
      drawn_ = {};
      break;
    default:
      break;
  }
}

void LineEditor::show_entry(std::size_t place) {
  const auto& entries = history_.entries();
  if (place_ == entries.size()) draft_ = typed_.text();
  place_ = place;
  typed_.set(place == entries.size() ? draft_ : entries[place]);
}

void LineEditor::cut(std::size_t place) {
  if (place != typed_.cursor()) taken_ = typed_.cut(place);
}

void LineEditor::draw(std::string_view prompt, bool whole) {
  const Window window = window_of(screen_);
  // What was drawn in a wider window has been broken by the terminal since.
  std::size_t above = 0;
  for (std::size_t i = first_row_; i < drawn_.row; ++i)
    above += std::max<std::size_t>(1, (drawn_.widths[i] + window.columns - 1) / window.columns);
  if (drawn_.column > 0) above += (drawn_.column - 1) / window.columns;
  drawn_ = lay_out(prompt, typed_, window.columns);
  first_row_ = whole || drawn_.row < window.rows ? 0 : drawn_.row - window.rows + 1;
  const std::size_t end = whole ? drawn_.rows.size() : std::min(first_row_ + window.rows, drawn_.rows.size());
  std::string out = up(above) + "\r\x1b[J";
  for (std::size_t i = first_row_; i < end; ++i) out += (i > first_row_ ? "\r\n" : "") + drawn_.rows[i];
  out += up(end - 1 - drawn_.row) + fmt::format("\x1b[{}G", drawn_.column + 1);
  write_all(screen_, out);
}

void LineEditor::finish(std::string_view prompt, std::string_view end) {
  typed_.move(typed_.text().size());
  draw(prompt, /*whole=*/true);
  write_all(screen_, end);
  drawn_ = {};
  first_row_ = 0;
}

}  // namespace tessera::terminal
