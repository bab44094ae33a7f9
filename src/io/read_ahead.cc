#include "io/read_ahead.h"

#include <algorithm>
#include <cstring>

#include "base/quiet_thread.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::uint64_t kRequestBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kBridgeBytes = std::uint64_t{128} << 10;  // a gap that costs less to read than to jump over
constexpr std::size_t kBuffers = 3, kThreads = 2;                 // requests in memory; of them on their way
constexpr std::uint64_t kWorthThreads = std::uint64_t{1} << 20;

}  // namespace

ReadAhead::ReadAhead(const std::vector<Stretch>& stretches) {
  plan(stretches);
  std::uint64_t bytes = 0;
  for (const auto& block : blocks_) bytes += block.end - block.begin;
  if (bytes >= kWorthThreads) {
    buffers_.emplace(kBuffers * kRequestBytes);
    threads_ = start_quiet_threads("tessera-read", kThreads, [this] { fetch_blocks(); });
  }
  if (!threads_.empty()) return;
  for (auto& block : blocks_) block.state = State::kInCache;
}

ReadAhead::~ReadAhead() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

/// Neighbours share a request, and so do stretches with small gaps between them.
void ReadAhead::plan(const std::vector<Stretch>& stretches) {
  for (const auto& stretch : stretches) {
    const std::uint64_t end = stretch.offset + stretch.bytes;
    for (std::uint64_t at = stretch.offset; at < end; at = blocks_.back().end) {
      const bool extends = !blocks_.empty() && blocks_.back().file == stretch.file &&
                           blocks_.back().readers == stretch.readers && at >= blocks_.back().begin &&
                           at <= blocks_.back().end + kBridgeBytes && at < blocks_.back().begin + kRequestBytes;
      if (!extends) {
        const std::uint64_t begin = at / InputFile::kBlockBytes * InputFile::kBlockBytes;
        blocks_.push_back({stretch.file, begin, begin, stretch.readers, State::kWaiting, nullptr});
      }
      Block& last = blocks_.back();
      last.end = std::max(last.end, std::min(end, last.begin + kRequestBytes));
    }
  }
}

std::byte* ReadAhead::buffer_of(std::size_t block) {
  return buffers_->data() + block % kBuffers * kRequestBytes;
}

void ReadAhead::fetch_blocks() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || next_ == blocks_.size() || next_ < current_ + kBuffers; });
    if (stopped_ || next_ == blocks_.size()) return;
    const std::size_t mine = next_++;
    Block& block = blocks_[mine];
    lock.unlock();
    State state = State::kInCache;
    std::exception_ptr failure;
    try {
      state = fetch(block, buffer_of(mine));
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    block.state = state;
    block.failure = failure;
    changed_.notify_all();
  }
}

ReadAhead::State ReadAhead::fetch(const Block& block, std::byte* buffer) const {
  const std::uint64_t bytes = block.end - block.begin;
  if (block.file->is_cached(block.begin, bytes)) return State::kInCache;
  const std::uint64_t whole = (bytes + InputFile::kBlockBytes - 1) / InputFile::kBlockBytes * InputFile::kBlockBytes;
  if (block.readers == Readers::kOne && block.file->read_past_cache(block.begin, buffer, whole))
    return State::kInBuffer;
  block.file->prefetch(block.begin, bytes);
  return State::kInCache;
}

/// Those before it are done with, and their buffers free.
const ReadAhead::Block& ReadAhead::wait_for(std::size_t block) {
  std::unique_lock lock(mutex_);
  if (block != current_) {
    current_ = block;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return blocks_[block].state != State::kWaiting; });
  if (blocks_[block].failure) std::rethrow_exception(blocks_[block].failure);
  return blocks_[block];
}

void ReadAhead::read(const InputFile& file, std::uint64_t offset, void* out, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(out);
  std::size_t at = current_;
  while (bytes > 0) {
    const auto holds = [&](const Block& b) { return b.file.get() == &file && offset >= b.begin && offset < b.end; };
    while (at < blocks_.size() && !holds(blocks_[at])) ++at;
    TESSERA_CHECK(at < blocks_.size(), "stretches are read in their order");
    const Block& block = wait_for(at);
    const std::size_t count = std::min<std::uint64_t>(bytes, block.end - offset);
    if (block.state == State::kInBuffer)
      std::memcpy(to, buffer_of(at) + (offset - block.begin), count);
    else
      file.read(offset, to, count);
    to += count;
    offset += count;
    bytes -= count;
  }
}

}  // namespace tessera::io
