#pragma once
// What a run is doing, read from outside: from the records that its ranks keep in memory (base/rank_record.h), from
// /proc, and from the files of its folder. The ranks do nothing for it, so that it tells of ranks that stand still.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::report {

struct RankStatus {
  int rank = 0, process = 0;
  char state = '?';  // of the process, as /proc says it: 'T' is stopped; 'X': it has ended
  std::string phase, activity, rows;
  double activity_seconds = 0;  // since it began
  std::int64_t step = 0, total_steps = 0;
  double step_seconds = 0, last_step_seconds = 0;  // since it began; 0: no step is done
  int waiting_for = -1;                            // a rank; -1: it does not wait
  double waiting_seconds = 0;
  std::string operation;  // in which it waits
  std::int64_t memory_bytes = 0;
};

struct RunStatus {
  std::string folder;
  std::vector<RankStatus> ranks;  // of this host; empty: there are none
  int world_size = 0;
  std::string holder;  // who holds the folder, "process 12 on host-a"; empty: nobody
  // By the folder's files.
  bool finished = false;
  std::int64_t last_step = 0, max_steps = 0;
  std::string newest_checkpoint;
};

/// DataError where the folder is not there, or holds nothing of a run and no rank works for it.
RunStatus run_status(const std::string& folder);

/// For whom the ranks wait: ranks that others wait for and that wait for nobody themselves.
std::vector<int> waited_for(const RunStatus& status);

/// Lines for a terminal.
std::string describe(const RunStatus& status);

}  // namespace tessera::report
