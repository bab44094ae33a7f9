#pragma once
// A stream of pieces, worked on by several threads, handed on in the order of the stream.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace tessera::data {

/// `read` gives the next piece (nothing: the end), `work` turns it into a result on some thread, `take` gets the
/// results in order; read and take run on the calling thread. At most 2 x workers pieces are under way. The first
/// exception in the order of the stream is rethrown, whatever the timing.
template <typename Piece, typename Result>
void run_ordered(int workers, const std::function<std::optional<Piece>()>& read,
                 const std::function<Result(Piece)>& work, const std::function<void(Result)>& take) {
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<std::packaged_task<Result()>> waiting;
  bool closed = false;
  const auto serve = [&] {
    for (;;) {
      std::packaged_task<Result()> task;
      {
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return closed || !waiting.empty(); });
        if (waiting.empty()) return;
        task = std::move(waiting.front());
        waiting.pop_front();
      }
      task();
    }
  };
  std::vector<std::thread> threads;
  const auto close = [&] {
    {
      const std::lock_guard lock(mutex);
      closed = true;
    }
    ready.notify_all();
    for (auto& thread : threads) thread.join();
    threads.clear();
  };
  std::deque<std::future<Result>> results;
  std::exception_ptr read_error;
  try {
    for (int i = 0; i < workers; ++i) threads.emplace_back(serve);
    const auto limit = static_cast<std::size_t>(2 * workers);
    for (;;) {
      std::optional<Piece> piece;
      try {
        piece = read();
      } catch (...) {
        read_error = std::current_exception();  // what was read before it comes first
      }
      if (!piece) break;
      auto shared = std::make_shared<Piece>(std::move(*piece));
      std::packaged_task<Result()> task([shared, &work] { return work(std::move(*shared)); });
      results.push_back(task.get_future());
      {
        const std::lock_guard lock(mutex);
        waiting.push_back(std::move(task));
      }
      ready.notify_one();
      if (results.size() < limit) continue;
      take(results.front().get());
      results.pop_front();
    }
    for (auto& result : results) take(result.get());
  } catch (...) {
    {
      const std::lock_guard lock(mutex);
      waiting.clear();
    }
    close();
    throw;
  }
  close();
  if (read_error) std::rethrow_exception(read_error);
}

}  // namespace tessera::data
