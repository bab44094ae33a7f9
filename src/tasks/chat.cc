#include "tasks/chat.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <utility>

#include "base/env.h"
#include "tasks/conversation.h"
#include "tasks/left_padding.h"
#include "tasks/opened_model.h"
#include "tasks/positions_note.h"
#include "terminal/line_editor.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::tasks {
namespace {

using ChatMessages = nlohmann::json;
/// Ctrl-C is noticed and ends nothing by itself, for as long as this lives. It is kept as a byte in a pipe, which a
/// wait for input watches, too: whichever thread gets the signal, and whenever.
class CtrlC {
 public:
  CtrlC() {
    if (::pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0)
      throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
    struct sigaction action{};
    action.sa_handler = [](int) {
      const int before = errno;
      [[maybe_unused]] const auto written = ::write(pipe_[1], "c", 1);  // full: it is noticed already
      errno = before;
    };
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~CtrlC() {
    ::sigaction(SIGINT, &before_, nullptr);
    for (const int end : pipe_) ::close(end);
  }
  CtrlC(const CtrlC&) = delete;
  CtrlC& operator=(const CtrlC&) = delete;

  /// Whether it was pressed since the last call.
  static bool take() {
    char bytes[64];
    bool pressed = false;
    while (::read(pipe_[0], bytes, sizeof bytes) > 0) pressed = true;
    return pressed;
  }
  /// Until standard input can be read (true), or it was pressed.
  static bool wait_for_input() {
    pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {pipe_[0], POLLIN, 0}};
    while (::poll(fds, 2, -1) < 0 && errno == EINTR) continue;
    return fds[1].revents == 0;
  }

 private:
  static inline int pipe_[2] = {-1, -1};
  struct sigaction before_{};
};

std::shared_ptr<comm::Communicator> alone() {
  auto group = comm::connect();
  if (group->size() > 1)
    throw ConfigError("'tessera chat' is one process; start it without launch, or answer rows with 'tessera generate'");
  return group;
}

/// Ends generate() from its callback.
struct AnswerStopped {};

class InputLines {
 public:
  /// Nothing at the end, or when Ctrl-C came.
  std::optional<std::string> next() {
    while (true) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (!CtrlC::wait_for_input()) return std::nullopt;
      char bytes[4096];
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n > 0) {
        buffer_.append(bytes, static_cast<std::size_t>(n));
      } else if (n == 0 && !buffer_.empty()) {
        buffer_ += '\n';  // the last line may lack its end
      } else {
        if (n < 0 && errno != EIO)  // EIO: the terminal is gone
          throw DataError(std::string("reading messages failed: ") + std::strerror(errno), "standard input");
        return std::nullopt;
      }
    }
  }

 private:
  std::string buffer_;
};

/// Empty: none is wished.
std::string history_file() {
  const auto named = environment("TESSERA_CHAT_HISTORY");
  if (named == "none") return "";
  return expanded_path(
      named.value_or(environment("XDG_STATE_HOME").value_or("~/.local/state") + "/tessera/chat_history"));
}

class ChatLoop {
 public:
  ChatLoop(const GenerateOptions& options, std::ostream& out, std::ostream& err)
      : options_(options),
        out_(out),
        err_(err),
        opened_(open_model(options, alone())),
        renderer_(opened_.tokenizer_folder, options.chat_template) {
    if (opened_.loaded.config.kind != models::ModelKind::kCausal)
      throw ConfigError("'" + options.model + "' is no causal language model; 'tessera generate --prompt' asks others",
                        "model");
    reset();
    renderer_.open();  // a folder without a template is said before the first message
  }

  int run() {
    for (const auto& note : opened_.loaded.notes) err_ << note << "\n";
    if (is_terminal_) err_ << "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends an answer\n";
    if (is_edited_) keep_history([&] { history_.open(history_file()); });
    while (true) {
      const auto line = is_edited_ ? edited() : plain();
      if (is_interrupted_ || CtrlC::take()) {
        if (!is_edited_) err_ << "\n";
        return 128 + SIGINT;
      }
      if (!line || *line == "/exit") break;
      obey(*line);
    }
    return 0;
  }

 private:
  std::optional<std::string> edited() {
    auto [how, text] = editor_.read("> ");
    is_interrupted_ = how == terminal::Typed::How::kInterrupted;
    if (how != terminal::Typed::How::kEntered) return {};
    keep_history([&] { history_.add(text); });
    return std::move(text);
  }

  std::optional<std::string> plain() {
    if (is_terminal_) err_ << "> " << std::flush;
    return lines_.next();
  }

  /// A chat goes on without a file.
  void keep_history(const std::function<void()>& step) {
    try {
      step();
    } catch (const Error& e) {
      err_ << "what is typed is kept until the end of this chat only: " << e.what()
           << "\nTESSERA_CHAT_HISTORY names another file, or none\n";
    }
  }

  void obey(const std::string& line) {
    constexpr std::size_t kLongestTyped = 4095;  // Linux drops what follows, up to the end of the line
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) return;
    if (is_terminal_ && !is_edited_ && line.size() >= kLongestTyped) {
      err_ << "a line at a terminal has less than 4095 bytes, and the rest of this one is lost: it is not answered. "
              "Longer ones come through a pipe: tessera chat ... < FILE\n";
    } else if (line == "/reset") {
      reset();
      err_ << "the conversation begins anew\n";
    } else if (line[0] == '/' && line.find_first_of(" \n") == std::string::npos) {
      err_ << "unknown command '" << line << "'; there are /reset and /exit\n";
    } else {
      answer(line);
    }
  }

  void reset() {
    messages_ = ChatMessages::array();
    if (!options_.system_prompt.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system_prompt}});
  }

  std::string rendered() { return renderer_.render({{"messages", messages_}}, ""); }

  /// What cannot be answered is said and forgotten; the conversation goes on as before it.
  void answer(const std::string& message) {
    const ChatMessages before = messages_;
    messages_.push_back({{"role", "user"}, {"content", message}});
    try {
      messages_.push_back({{"role", "assistant"}, {"content", generated()}});
    } catch (const Error& e) {
      messages_ = before;
      err_ << "tessera error: " << e.what() << "\n";
    }
  }

  std::string generated() {
    const auto ids = opened_.tokenizer->encode(rendered(), /*add_special_tokens=*/false).ids;
    const auto note = positions_note(opened_.loaded.config, "the conversation and its answer may have",
                                     models::most_tokens(opened_.settings, std::ssize(ids)));
    if (!note.empty() && !std::exchange(told_length_, true)) err_ << note;
    const auto batch = left_padded({ids});
    TokenStream stream(out_, *opened_.tokenizer, options_.skip_special_tokens);
    try {
      models::generate(*opened_.loaded.model, batch.ids, batch.mask, opened_.settings, false, [&](const at::Tensor& t) {
        stream.add(t);
        if (CtrlC::take()) throw AnswerStopped();
      });
    } catch (const AnswerStopped&) {
    }
    (void)CtrlC::take();  // pressed behind the last token, it was meant for this answer
    return stream.finish();
  }

  const GenerateOptions& options_;
  std::ostream& out_;
  std::ostream& err_;
  OpenedModel opened_;
  ConversationRenderer renderer_;
  ChatMessages messages_;
  const bool is_terminal_ = ::isatty(STDIN_FILENO) == 1;
  const bool is_edited_ = is_terminal_ && ::isatty(STDERR_FILENO) == 1 && environment("TERM") != "dumb";
  InputLines lines_;
  terminal::History history_;
  terminal::LineEditor editor_{STDIN_FILENO, STDERR_FILENO, history_};
  CtrlC ctrl_c_;
  bool is_interrupted_ = false, told_length_ = false;
};

}  // namespace

int chat(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_chat(args, out);
  if (!options) return 0;
  for (const auto& note : options->notes) err << note << "\n";
  return ChatLoop(*options, out, err).run();
}

}  // namespace tessera::tasks
