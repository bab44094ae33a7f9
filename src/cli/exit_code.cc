#include "cli/exit_code.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <thread>

#include "base/plain_reason.h"
#include "base/rank_environment.h"
#include "config/problems.h"
#include "launch/launch.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

constexpr const char* kHostIsFull = "out of memory; use more ranks, a smaller batch or a smaller model";

/// As libtorch's allocator and the system say it (base/plain_reason.h).
bool is_of_memory(const std::string& reason) {
  return reason.starts_with("not enough memory") || reason.ends_with("Cannot allocate memory");
}

int report(std::ostream& err, const std::string& message, int code) {
  err << "tessera error: " << message << std::endl;
  return code;
}

/// In which rank 0 says what is wrong: mpirun and torchrun end all ranks when one has failed.
constexpr std::chrono::seconds kForRank0{2};

/// Whether rank 0 says what is wrong with the words that all ranks have. Our own launcher starts some of a job's ranks,
/// and shows the one that failed first.
bool is_said_by_rank_0() {
  if (launch::is_launched()) return false;
  try {
    return read_rank_environment().rank > 0;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

int run_guarded(const std::function<int()>& body, std::ostream& err) {
  try {
    return body();
  } catch (const config::UsageError& e) {
    if (!is_said_by_rank_0()) return report(err, e.what(), kConfigError);
    std::this_thread::sleep_for(kForRank0);
    return kConfigError;
  } catch (const ConfigError& e) {
    return report(err, e.what(), kConfigError);
  } catch (const DataError& e) {
    return report(err, e.what(), kDataError);
  } catch (const CheckpointError& e) {
    return report(err, e.what(), kCheckpointError);
  } catch (const CommError& e) {
    return report(err, e.what(), kCommError);
  } catch (const InternalError& e) {
    return report(err, e.what(), kInternalError);
  } catch (const Error& e) {
    return report(err, e.what(), kFailure);
  } catch (const std::bad_alloc& e) {
    const std::string said = e.what();  // of a device's memory more than of the host's
    return report(err, said == std::bad_alloc().what() ? kHostIsFull : said, kOutOfMemory);
  } catch (const std::exception& e) {
    const std::string reason = plain_reason(e);
    if (is_of_memory(reason)) return report(err, std::string(kHostIsFull) + " (" + reason + ")", kOutOfMemory);
    return report(err, reason, kInternalError);
  }
}

int flush_output(int code, std::ostream& err) {
  errno = 0;
  std::cout.flush();
  const bool is_whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  const int error = errno;
  pollfd reader{STDOUT_FILENO, 0, 0};
  const bool has_left = ::poll(&reader, 1, 0) > 0;
  if (is_whole || has_left || code != kSuccess) return code;
  return report(err,
                fmt::format("not all of the output could be written{}; free some space, or write to another file",
                            error != 0 ? fmt::format(": {}", std::strerror(error)) : ""),
                kCheckpointError);
}

}  // namespace tessera::cli
