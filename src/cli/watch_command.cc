#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/folder_names.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/options.h"
#include "report/run_record.h"
#include "report/run_status.h"
#include "report/terminal_view.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Nothing: the output is no terminal.
std::optional<int> terminal_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0) return {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

/// The rate of steps since the watch began.
class TimeLeft {
 public:
  std::optional<double> of(const report::RunRecord& run) {
    if (run.last_step < first_step_ || first_step_ < 0) {
      first_step_ = run.last_step;
      start_ = Clock::now();
    }
    if (run.last_step == first_step_ || run.max_steps == 0) return {};
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return seconds / static_cast<double>(run.last_step - first_step_) *
           static_cast<double>(run.max_steps - run.last_step);
  }

 private:
  std::int64_t first_step_ = -1;
  Clock::time_point start_;
};

/// The curves, and of a run that goes on what its ranks do. `ended`: there is nothing more to come.
std::string view(const std::string& folder, TimeLeft& time_left, bool& ended) {
  const report::RunStatus status = report::run_status(folder);
  std::string out;
  try {
    const report::RunRecord run = report::read_run(folder, folder);
    out = report::terminal_view(run, terminal_columns(), time_left.of(run));
  } catch (const DataError&) {
    if (status.ranks.empty() && status.holder.empty()) throw;
    out = folder + ": nothing is logged yet\n";
  }
  ended = status.ranks.empty() && status.holder.empty();
  return ended && out.ends_with("the run has ended\n") ? out : out + "\n" + report::describe(status);
}

/// Over the last one: its lines are as many as there are ends of lines.
void draw(std::ostream& out, const std::string& text, std::size_t& lines) {
  if (lines > 0) out << fmt::format("\x1b[{}A", lines);
  out << "\x1b[J" << text << std::flush;
  const auto columns = static_cast<std::size_t>(terminal_columns().value());
  lines = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto width = static_cast<std::size_t>(count_points(std::string_view(text).substr(begin, end - begin)));
    lines += std::max<std::size_t>(1, (width + columns - 1) / columns);
    begin = end + 1;
  }
}

}  // namespace

int watch_command(const Arguments& args, std::ostream& out, std::ostream&) {
  std::string folder;
  double interval = 2;
  config::OptionTable table("tessera watch",
                            "shows a run in the terminal while it goes on: how far it is, its curves, memory, time, "
                            "and what its ranks do; ends "
                            "with the run. Where the output is no terminal it says so once");
  table.positional(&folder, "DIR", "output_dir of the run");
  table.add(&interval, {"--interval"}, "seconds between two looks").placeholder("SECONDS");
  table.example("out/lora");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  if (!(interval >= 0.1 && interval <= 86400))
    throw ConfigError(fmt::format("--interval is {}, expected 0.1 to 86400 seconds", interval), "interval");
  folder = without_end_slashes(std::move(folder));
  TimeLeft time_left;
  bool ended = false;
  std::size_t lines = 0;
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  while (true) {
    const std::string text = view(folder, time_left, ended);
    is_terminal ? draw(out, text, lines) : static_cast<void>(out << text << std::flush);
    if (ended || !is_terminal) return kSuccess;
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
  }
}

}  // namespace tessera::cli
