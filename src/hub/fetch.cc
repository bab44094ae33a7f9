#include "hub/fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>

#include "base/log.h"
#include "base/quiet_thread.h"
#include "hub/cache.h"
#include "hub/client.h"
#include "hub/download.h"
#include "hub/progress.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

using Work = std::function<void(std::size_t)>;

/// Some threads take the items one after the other, each with a worker of its own; the first failure stops all, and is
/// thrown. Workers look at `stopped` now and then.
void in_parallel(std::size_t items, int threads, const std::function<Work(const std::atomic<bool>& stopped)>& worker) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&] {
    try {
      const Work work = worker(stopped);
      for (std::size_t i = next++; i < items && !stopped; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      stopped = true;
    }
  };
  auto running = start_quiet_threads("tessera-fetch", std::min(items, static_cast<std::size_t>(threads)), run);
  if (running.empty()) run();
  for (auto& thread : running) thread.join();
  if (failure) std::rethrow_exception(failure);
}

class Fetch {
 public:
  Fetch(const RepositoryName& name, const Wanted& wanted, const Settings& settings)
      : name_(name), wanted_(wanted), settings_(settings), cache_(settings.cache, name) {}

  std::string run() {
    if (settings_.offline)
      take_cached("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set");
    else
      ask();
    const std::string folder = cache_.snapshot(listing_.commit);
    for (auto missing = choose(folder); !missing.empty(); missing = choose(folder)) {
      if (!why_not_.empty()) throw_incomplete(missing.front());
      const FileLock lock = lock_repository();
      missing = choose(folder);  // who held the lock has downloaded them
      if (!missing.empty()) download(missing);
    }
    if (why_not_.empty()) note();
    return folder;
  }

 private:
  void ask() {
    const auto instead = [&](const std::string& why) {
      if (!cache_.commit()) return false;
      log_warning(
          fmt::format("the Hub does not say whether '{}' has changed ({}); the cache is used", text_of(name_), why));
      take_cached(why);
      return true;
    };
    Settings settings = settings_;
    if (cache_.commit()) settings.tries = 1;  // there is something to go on with
    try {
      listing_ = Client(settings).list(name_);
    } catch (const Refused& refusal) {
      if (!instead(refusal.what())) throw;
    } catch (const Unavailable& failure) {
      if (!instead(failure.what()))
        throw DataError(
            fmt::format("'{}' is neither a file or folder here nor in the cache ({}), and the Hub cannot be "
                        "asked: {}",
                        text_of(name_), settings_.cache, failure.what()),
            name_.id);
    }
  }

  /// For the next time, and for Python.
  void note() const {
    const auto& all = listing_.files;
    std::vector<std::string> absent;
    std::copy_if(wanted_.may_lack.begin(), wanted_.may_lack.end(), std::back_inserter(absent),
                 [&](const auto& file) { return !std::binary_search(all.begin(), all.end(), file); });
    if (cache_.is_noted(listing_.commit, absent)) return;
    try {
      const FileLock lock = lock_repository();
      cache_.note(listing_.commit, absent);
    } catch (const CheckpointError&) {
      // A cache that many only read has all the same what is wanted; who comes next asks again.
    }
  }

  FileLock lock_repository() const { return FileLock(cache_.repository_lock(), "'" + text_of(name_) + "'"); }

  void take_cached(const std::string& why) {
    const auto commit = cache_.commit();
    if (!commit)
      throw DataError(fmt::format("'{}' is neither a file or folder here nor in the cache ({}), and nothing is "
                                  "downloaded: {}",
                                  text_of(name_), settings_.cache, why),
                      name_.id);
    listing_ = {.commit = *commit, .files = cache_.files(*commit)};
    why_not_ = why;
  }

  /// The chosen files that are not here.
  std::vector<std::string> choose(const std::string& folder) const {
    std::vector<std::string> out;
    for (auto& file : wanted_.select(listing_.files, folder)) {
      if (cache_.has(listing_.commit, file)) continue;
      if (why_not_.empty() && !std::binary_search(listing_.files.begin(), listing_.files.end(), file))
        throw DataError(fmt::format("'{}' lacks '{}', which its index names", text_of(name_), file), name_.id);
      if (std::find(out.begin(), out.end(), file) == out.end()) out.push_back(std::move(file));
    }
    return out;
  }

  [[noreturn]] void throw_incomplete(const std::string& file) const {
    throw DataError(fmt::format("'{}' of '{}' is not in the cache ({}), and nothing is downloaded: {}", file,
                                text_of(name_), cache_.snapshot(listing_.commit), why_not_),
                    name_.id);
  }

  void download(const std::vector<std::string>& paths) const {
    auto files = describe(paths);
    require_space(files);
    std::int64_t total = 0;
    for (const auto& file : files) total += file.size_bytes;
    std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.size_bytes > b.size_bytes; });
    Progress progress(fmt::format("{} file{} of '{}'", files.size(), files.size() == 1 ? "" : "s", text_of(name_)),
                      total);
    const Place place{.name = name_, .cache = cache_, .commit = listing_.commit};
    in_parallel(files.size(), settings_.downloads, [&](const std::atomic<bool>& stopped) {
      const Count count = [&](std::int64_t bytes) {
        if (stopped) throw Error("the download of another file failed");
        progress.add(bytes);
      };
      return [&, count, client = std::make_shared<Client>(settings_)](std::size_t i) {
        download_file(*client, place, files[i], count);
      };
    });
    progress.finish();
  }

  std::vector<RemoteFile> describe(const std::vector<std::string>& paths) const {
    std::vector<RemoteFile> out(paths.size());
    in_parallel(paths.size(), settings_.downloads, [&](const std::atomic<bool>&) {
      return [&, client = std::make_shared<Client>(settings_)](std::size_t i) {
        out[i] = client->describe(name_, listing_.commit, paths[i]);
      };
    });
    return out;
  }

  void require_space(const std::vector<RemoteFile>& files) const {
    std::int64_t bytes = 0;
    std::error_code code;
    for (const auto& file : files) {
      const std::string blob = cache_.blob(file.etag);
      if (fs::exists(blob, code)) continue;
      const auto begun = fs::file_size(blob + ".incomplete", code);
      bytes += std::max<std::int64_t>(0, file.size_bytes - (code ? 0 : static_cast<std::int64_t>(begun)));
    }
    fs::path place = settings_.cache;
    while (!fs::exists(place, code) && place.has_relative_path()) place = place.parent_path();
    const auto space = fs::space(place, code);
    if (code || space.available >= static_cast<std::uint64_t>(bytes)) return;
    throw CheckpointError(
        fmt::format("'{}' needs {} MB on the disk of '{}', which has {} MB free; make room, or name a cache on another "
                    "disk with HF_HUB_CACHE or HF_HOME",
                    text_of(name_), bytes / 1'000'000, settings_.cache, space.available / 1'000'000),
        settings_.cache);
  }

  const RepositoryName& name_;
  const Wanted& wanted_;
  const Settings& settings_;
  const Cache cache_;
  Listing listing_;
  std::string why_not_;  // nothing is downloaded; empty: it may be
};

}  // namespace

std::string fetch(const RepositoryName& name, const Wanted& wanted, const Settings& settings) {
  return Fetch(name, wanted, settings).run();
}

}  // namespace tessera::hub
