#include "tensor/uploader.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/quiet_thread.h"
#include "base/upload_ring.h"
#include "tensor/mapped_zeros.h"
#include "tensor/pinned_memory.h"

namespace tessera::tensor {

class Uploader::Batch {
 public:
  std::mutex mutex;
  std::condition_variable changed;
  int parts = 0;  // pieces that are not queued yet
  bool ended = false;
  std::exception_ptr failure;
  std::optional<c10::Event> done;  // once it has ended and all parts are queued

  /// With the mutex held.
  void mark_when_queued(const CopyStream& stream) {
    if (ended && parts == 0) done = stream.mark();
  }
};

struct Uploader::Ring {
  struct Part {
    std::shared_ptr<Batch> batch;
    at::Tensor to, from;  // bytes
  };

  Ring(CopyStream& stream, int threads)
      : stream_(stream),
        memory_(mapped_zeros(threads * kUploadPieces * kUploadPieceBytes, at::kByte)),
        pinned_(memory_.mutable_data_ptr(), static_cast<std::int64_t>(memory_.nbytes()), stream.device()) {
    if (!pinned_.pinned()) return;
    for (int i = 0; i < threads; ++i)
      threads_.push_back(start_quiet_thread("tessera-upload", [this, i] { run(i * kUploadPieces); }));
  }
  ~Ring() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  bool pinned() const { return pinned_.pinned(); }

  void add(const std::shared_ptr<Batch>& batch, const at::Tensor& to, const at::Tensor& from) {
    const auto bytes_of = [](const at::Tensor& t) { return t.view({-1}).view(at::kByte); };
    const auto target = bytes_of(to), source = bytes_of(from);
    const auto bytes = target.numel();
    const std::lock_guard lock(mutex_);
    for (std::int64_t at = 0; at < bytes; at += kUploadPieceBytes) {
      const auto part = std::min(kUploadPieceBytes, bytes - at);
      parts_.push_back({batch, target.narrow(0, at, part), source.narrow(0, at, part)});
      const std::lock_guard batch_lock(batch->mutex);
      ++batch->parts;
    }
    changed_.notify_all();
  }

 private:
  /// first: of this thread's pieces.
  void run(int first) {
    const c10::OptionalDeviceGuard guard(stream_.device());
    std::optional<c10::Event> free[kUploadPieces];  // when the piece was copied from
    for (int turn = 0;; turn = (turn + 1) % kUploadPieces) {
      Part part;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stops_ || !parts_.empty(); });
        if (parts_.empty()) break;
        part = std::move(parts_.front());
        parts_.pop_front();
      }
      std::exception_ptr failure;
      try {
        if (free[turn]) free[turn]->synchronize();
        const auto piece = memory_.narrow(0, (first + turn) * kUploadPieceBytes, part.to.numel());
        std::memcpy(piece.mutable_data_ptr(), part.from.const_data_ptr(), piece.nbytes());
        stream_.copy(part.to, piece);
        free[turn] = stream_.mark();
      } catch (...) {
        failure = std::current_exception();
      }
      part.to.reset(), part.from.reset();  // whoever waits shall be the last to hold them
      {
        const std::lock_guard lock(part.batch->mutex);
        --part.batch->parts;
        if (failure && !part.batch->failure) part.batch->failure = failure;
        part.batch->mark_when_queued(stream_);
      }
      part.batch->changed.notify_all();
    }
    stream_.mark().synchronize();  // nobody reads the pieces any more
  }

  CopyStream& stream_;
  at::Tensor memory_;
  PinnedMemory pinned_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> parts_;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

Uploader::Uploader(at::Device device)
    : stream_(device), threads_(std::clamp(at::get_num_threads(), 1, kUploadThreads)) {}

Uploader::~Uploader() = default;

Uploader::Ring* Uploader::ring() {
  if (!ring_) ring_ = std::make_unique<Ring>(stream_, threads_);
  return ring_->pinned() ? ring_.get() : nullptr;
}

std::shared_ptr<Uploader::Batch> Uploader::begin() {
  stream_.wait_for_computation();
  return std::make_shared<Batch>();
}

void Uploader::add(const std::shared_ptr<Batch>& batch, const at::Tensor& to, const at::Tensor& from) {
  if (auto* pieces = from.is_pinned() ? nullptr : ring())
    pieces->add(batch, to, from);
  else
    stream_.copy(to, from);
}

void Uploader::end(Batch& batch) {
  const std::lock_guard lock(batch.mutex);
  batch.ended = true;
  batch.mark_when_queued(stream_);
}

void Uploader::wait(Batch& batch) {
  if (!batch.ended) end(batch);  // an error came between
  std::unique_lock lock(batch.mutex);
  batch.changed.wait(lock, [&] { return batch.parts == 0; });
  stream_.block_computation(*batch.done);
  if (batch.failure) std::rethrow_exception(batch.failure);
}

void Uploader::settle() {
  stream_.mark().synchronize();
}

}  // namespace tessera::tensor
