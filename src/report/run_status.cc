#include "report/run_status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/folder_names.h"
#include "base/open_file.h"
#include "base/quantity_text.h"
#include "base/rank_record.h"
#include "report/memory.h"
#include "report/run_record.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;

double seconds_since(std::int64_t then, std::int64_t now) {
  return then == 0 ? 0 : std::max<double>(0, static_cast<double>(now - then) * 1e-9);
}

/// The letter behind the name, which may hold anything, in /proc/N/stat.
char state_of(int process) {
  std::ifstream in(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(in, line)) return 'X';
  const auto end = line.rfind(") ");
  return end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
}

RankStatus status_of(const RankRecord& record, int rank, std::int64_t now) {
  RankStatus s;
  s.rank = rank;
  s.process = record.process.load();
  s.state = state_of(s.process);
  s.phase = record.phase.get();
  s.activity = record.activity.get();
  s.rows = record.rows.get();
  s.activity_seconds = seconds_since(record.activity_since.load(), now);
  s.step = record.step.load();
  s.total_steps = record.total_steps.load();
  s.step_seconds = seconds_since(record.step_since.load(), now);
  s.last_step_seconds = static_cast<double>(record.last_step.load()) * 1e-9;
  if (const auto since = record.waiting_since.load(); since != 0) {
    s.waiting_for = record.waiting_for.load();
    s.waiting_seconds = seconds_since(since, now);
    s.operation = record.operation.get();
  }
  const ProcessMemory memory = process_memory(std::to_string(s.process));
  s.memory_bytes = memory.proportional_bytes > 0 ? memory.proportional_bytes : memory.resident_bytes;
  return s;
}

/// One process of the run is enough: its memory has the records of all ranks of this host.
void find_ranks(RunStatus& status) {
  const std::uint64_t mark = folder_mark(status.folder);
  std::set<int> seen;
  std::error_code code;
  for (fs::directory_iterator entry("/proc", code), end; !code && entry != end; entry.increment(code)) {
    const std::string process = entry->path().filename();
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    for (const auto& records : RankRecords::of_process(process)) {
      const auto& head = records->head();
      const std::int64_t now = steady_nanoseconds();
      for (int r = 0; r < head.ranks; ++r) {
        const RankRecord& record = (*records)[r];
        if (record.folder.load() != mark || !seen.insert(head.first_rank + r).second) continue;
        status.ranks.push_back(status_of(record, head.first_rank + r, now));
        status.world_size = head.world_size;
      }
    }
  }
  std::sort(status.ranks.begin(), status.ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
}

/// Who holds the folder's lock (checkpoint/run_lock.h); empty: nobody.
std::string holder_of(const std::string& folder) {
  if (!is_there(folder + "/.tessera.lock")) return {};
  const OpenFile file(folder + "/.tessera.lock");
  if (::flock(file.descriptor(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};  // given back at once
  char text[400] = {};
  const auto got = ::pread(file.descriptor(), text, sizeof text - 1, 0);
  return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "another process";
}

void read_files(RunStatus& status) {
  std::int64_t newest = -1;
  std::error_code code;
  for (fs::directory_iterator entry(status.folder, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename();
    const std::int64_t step = checkpoint_step(name);
    if (step <= newest) continue;
    newest = step;
    status.newest_checkpoint = name;
  }
  try {
    const RunRecord record = read_run(status.folder, "run");
    status.finished = !record.summary.empty();
    status.last_step = record.last_step;
    status.max_steps = record.max_steps;
  } catch (const DataError&) {
    status.last_step = std::max<std::int64_t>(newest, 0);
  }
}

/// Of a process that does not run; empty for others.
std::string word_of(char state) {
  if (state == 'T' || state == 't') return "is stopped by a signal";
  if (state == 'D') return "waits for a disk";
  if (state == 'X' || state == 'Z') return "has ended";
  return {};
}

std::string line_of(const RankStatus& s) {
  std::string out = fmt::format("rank {} (process {}", s.rank, s.process);
  if (const std::string word = word_of(s.state); !word.empty()) out += ", " + word;
  out += fmt::format(", {}): ", bytes_text(s.memory_bytes));
  if (s.step > 0) out += fmt::format("step {} for {}, ", s.step, duration_text(s.step_seconds));
  if (!s.phase.empty()) out += s.phase + ", ";
  if (!s.activity.empty()) out += fmt::format("{} for {}", s.activity, duration_text(s.activity_seconds));
  if (out.ends_with(", ")) out.resize(out.size() - 2);
  if (!s.rows.empty() && s.step > 0) out += "; " + s.rows;
  if (s.last_step_seconds > 0) out += fmt::format("; the last step took {}", duration_text(s.last_step_seconds));
  if (s.waiting_for >= 0)
    out +=
        fmt::format("; waits for rank {} for {} in {}", s.waiting_for, duration_text(s.waiting_seconds), s.operation);
  return out + "\n";
}

/// Without ranks on this host.
std::string describe_files(const RunStatus& s) {
  if (!s.holder.empty())
    return fmt::format(
        "{}: a run goes on ({}), whose ranks cannot be seen from here: they are on another host, in another container, "
        "or another user's. Run 'tessera status' there\n",
        s.folder, s.holder);
  const std::string steps =
      s.max_steps > 0 ? fmt::format("step {} of {}", s.last_step, s.max_steps) : fmt::format("step {}", s.last_step);
  if (s.finished) return fmt::format("{}: no run goes on; the last one finished at {}\n", s.folder, steps);
  std::string out =
      fmt::format("{}: no run goes on; the last one ended before its end, at {} or later", s.folder, steps);
  if (s.newest_checkpoint.empty()) return out + ", without a checkpoint\n";
  return out + fmt::format("; --resume_from_checkpoint true goes on from {}\n", s.newest_checkpoint);
}

}  // namespace

RunStatus run_status(const std::string& folder) {
  RunStatus status;
  status.folder = folder;
  find_ranks(status);
  if (!status.ranks.empty()) return status;
  if (!fs::is_directory(folder))
    throw DataError(fmt::format("'{}' is not a folder, and no rank works for one of this name on this host; expected "
                                "the --output_dir of a run",
                                folder),
                    folder);
  status.holder = holder_of(folder);
  read_files(status);
  const bool has_lock = is_there(folder + "/.tessera.lock");
  if (status.holder.empty() && !has_lock && status.last_step == 0 && !status.finished)
    throw DataError(fmt::format("'{}' holds nothing of a run; expected the --output_dir of one", folder), folder);
  return status;
}

std::vector<int> waited_for(const RunStatus& status) {
  std::set<int> wanted;
  for (const auto& s : status.ranks)
    if (s.waiting_for >= 0) wanted.insert(s.waiting_for);
  for (const auto& s : status.ranks)
    if (s.waiting_for >= 0) wanted.erase(s.rank);
  return {wanted.begin(), wanted.end()};
}

std::string describe(const RunStatus& status) {
  if (status.ranks.empty()) return describe_files(status);
  std::int64_t step = 0, total = 0;
  for (const auto& s : status.ranks) step = std::max(step, s.step), total = std::max(total, s.total_steps);
  const int here = static_cast<int>(status.ranks.size());
  std::string out =
      fmt::format("{}: {}, {} ranks{}\n", status.folder,
                  total > 0 ? fmt::format("step {} of {}", step, total) : "before the first step", status.world_size,
                  here < status.world_size ? fmt::format(", {} on this host", here) : "");
  for (const auto& s : status.ranks) out += line_of(s);
  for (const int rank : waited_for(status)) {
    const auto found =
        std::find_if(status.ranks.begin(), status.ranks.end(), [&](const auto& s) { return s.rank == rank; });
    out += fmt::format("The others wait for rank {}", rank);
    if (found == status.ranks.end()) {
      out += ", which is on another host: run 'tessera status' there\n";
      continue;
    }
    const std::string word = word_of(found->state);
    if (!word.empty()) out += ", which " + word;
    if (found->state == 'T') out += fmt::format("; 'kill -CONT {}' lets it go on", found->process);
    out += "\n";
  }
  if (here < status.world_size)
    out += "The ranks of other hosts are not known here; run 'tessera status' there for theirs.\n";
  return out;
}

}  // namespace tessera::report
