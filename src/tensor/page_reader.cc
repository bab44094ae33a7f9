#include "tensor/page_reader.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/quiet_thread.h"

namespace tessera::tensor {
namespace {

constexpr std::uintptr_t kPieceBytes = 4 << 20;  // two huge pages
constexpr std::size_t kThreads = 2;              // of a rank; each has a piece on its way

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/// Disk to page table.
void read(const FilePages::Range& piece) {
  auto* const pages = reinterpret_cast<void*>(piece.begin);
  const auto bytes = piece.end - piece.begin;
  if (::madvise(pages, bytes, MADV_POPULATE_READ) != 0 && errno == EINVAL)
    ::madvise(pages, bytes, MADV_WILLNEED);  // Linux before 5.14: to the page cache alone
}

}  // namespace

struct PageReader::State {
  struct Piece {
    std::shared_ptr<const FilePages> owner;
    FilePages::Range range;
  };
  int rank, ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Piece> pieces;
  std::vector<const FilePages*> reading;  // the owners of pieces on their way
  bool stops = false;
  std::vector<std::thread> threads;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stops || !pieces.empty(); });
      if (stops) return;
      const Piece piece = std::move(pieces.front());
      pieces.pop_front();
      reading.push_back(piece.owner.get());
      lock.unlock();
      read(piece.range);
      lock.lock();
      reading.erase(std::find(reading.begin(), reading.end(), piece.owner.get()));
      changed.notify_all();
    }
  }

  void start() {
    threads = start_quiet_threads("tessera-pages", kThreads, [this] { run(); });
    if (threads.empty()) pieces.clear();  // their readers bring them
  }
};

PageReader::PageReader(int rank, int ranks) : state_(std::make_unique<State>()) {
  state_->rank = rank;
  state_->ranks = ranks;
}

PageReader::~PageReader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stops = true;
  }
  state_->changed.notify_all();
  for (auto& thread : state_->threads) thread.join();
}

void PageReader::bring(std::shared_ptr<const FilePages> pages) {
  std::vector<State::Piece> pieces;
  for (const auto& range : pages->ranges()) {
    for (auto at = range.begin; at < range.end;) {
      const auto end = std::min(range.end, (at / kPieceBytes + 1) * kPieceBytes);
      pieces.push_back({pages, {at, end}});
      at = end;
    }
  }
  const auto first = pieces.size() * static_cast<std::size_t>(state_->rank) / static_cast<std::size_t>(state_->ranks);
  std::rotate(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
  {
    const std::lock_guard lock(state_->mutex);
    state_->pieces.insert(state_->pieces.end(), pieces.begin(), pieces.end());
    if (state_->threads.empty()) state_->start();
  }
  state_->changed.notify_all();
}

void PageReader::forget(const FilePages& pages) {
  std::unique_lock lock(state_->mutex);
  std::erase_if(state_->pieces, [&](const auto& piece) { return piece.owner.get() == &pages; });
  state_->changed.wait(lock, [&] { return !std::count(state_->reading.begin(), state_->reading.end(), &pages); });
}

void PageReader::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->pieces.empty() && state_->reading.empty(); });
}

}  // namespace tessera::tensor
