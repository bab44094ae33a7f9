#include "tensor/page_reader.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>

namespace tessera::tensor {
namespace {

constexpr std::uintptr_t kPage = 4096, kPieceBytes = 4 << 20;

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; before, it is refused and the first read brings the page
#endif

/// Disk to page table. In huge pages a request to the disk is as long as they are, and the kernel has a five-hundredth
/// of the pages to find, to fill and to map; where it has none for files, small ones come by its own reading ahead.
void read(std::uintptr_t begin, std::uintptr_t end) {
  auto* const pages = reinterpret_cast<void*>(begin);
  ::madvise(pages, end - begin, MADV_HUGEPAGE);
  ::madvise(pages, end - begin, MADV_POPULATE_READ);
}

}  // namespace

struct PageReader::State {
  struct Range {
    at::Tensor view;
    std::uintptr_t next, end;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Range> ranges;
  const at::Tensor* reading = nullptr;  // the view of the piece that is on its way, without the mutex
  bool forgotten = false;               // that view was, meanwhile
  bool stops = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stops || !ranges.empty(); });
      if (stops) return;
      Range range = ranges.front();
      const auto begin = range.next, end = std::min(range.end, begin + kPieceBytes);
      ranges.front().next = end;
      if (end == range.end) ranges.pop_front();
      reading = &range.view;
      forgotten = false;
      lock.unlock();
      read(begin, end);
      lock.lock();
      if (forgotten) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
      reading = nullptr;
      if (ranges.empty()) changed.notify_all();
    }
  }
};

PageReader::PageReader() : state_(std::make_shared<State>()) {}

PageReader::~PageReader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stops = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

void PageReader::bring(const std::vector<at::Tensor>& views) {
  {
    const std::lock_guard lock(state_->mutex);
    for (const auto& view : views) {
      const auto address = reinterpret_cast<std::uintptr_t>(view.const_data_ptr());
      const auto begin = address / kPage * kPage, end = (address + view.nbytes() + kPage - 1) / kPage * kPage;
      if (begin < end) state_->ranges.push_back({view, begin, end});
    }
    if (!state_->thread.joinable()) {
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      state_->thread = std::thread([state = state_] { state->run(); });
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  state_->changed.notify_all();
}

void PageReader::forget(const at::Tensor& view) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->ranges, [&](const auto& range) { return range.view.is_same(view); });
  if (state_->reading && state_->reading->is_same(view)) state_->forgotten = true;
  if (state_->ranges.empty()) state_->changed.notify_all();
}

void PageReader::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->ranges.empty() && !state_->reading; });
}

}  // namespace tessera::tensor
