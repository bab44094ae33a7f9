#include "fsdp/runtime/background_step.h"

#include <utility>

#include "tensor/span.h"

namespace tessera::fsdp {

BackgroundStep::BackgroundStep(const std::vector<std::shared_ptr<Unit>>& units,
                               std::shared_ptr<comm::Communicator> fences)
    : units_(units), fences_(std::move(fences)), flats_(units.size()) {
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const auto& segment : units_[u]->segments()) {
      if (!segment.trainable) continue;
      unit_of_.push_back(u);
      ++flats_[u];
    }
  thread_ = std::thread([this] { work(); });
}

BackgroundStep::~BackgroundStep() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundStep::start(optim::Optimizer& optimizer) {
  optimizer_ = &optimizer;
  {
    const std::lock_guard lock(mutex_);
    shown_ = 0;
    ended_ = false;
    asked_ = true;
  }
  changed_.notify_all();
}

bool BackgroundStep::is_done(const Unit& unit) const {
  const auto u = static_cast<std::size_t>(unit.index());
  return u < shown_ || ended_ || flats_[u] == 0;
}

bool BackgroundStep::has_updated(const Unit& unit) {
  if (!running()) return true;
  const std::lock_guard lock(mutex_);
  return is_done(unit);
}

void BackgroundStep::wait_for(const Unit& unit) {
  if (!running()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_done(unit); });
  if (error_) std::rethrow_exception(error_);
}

void BackgroundStep::finish() {
  if (!running()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_; });
  std::exchange(optimizer_, nullptr)->zero_grad();
  if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void BackgroundStep::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return asked_ || stops_; });
    if (!asked_) return;
    asked_ = false;
    lock.unlock();
    std::exception_ptr error;
    try {
      step();
    } catch (...) {
      error = std::current_exception();
    }
    optimizer_->on_updated(nullptr);
    lock.lock();
    error_ = error;
    ended_ = true;
    changed_.notify_all();
  }
}

void BackgroundStep::step() {
  const tensor::Span span("optimizer step");
  left_ = flats_;
  updated_.assign(unit_of_.size(), false);
  optimizer_->on_updated([this](std::size_t flat) { note_updated(flat); });
  optimizer_->step();
  for (std::size_t flat = 0; flat < unit_of_.size(); ++flat) note_updated(flat);  // what it did not name
}

// Units are shown in their order, so that all ranks meet at the same fences.
void BackgroundStep::note_updated(std::size_t flat) {
  if (updated_[flat]) return;
  updated_[flat] = true;
  --left_[unit_of_[flat]];
  while (shown_ < units_.size() && left_[shown_] == 0) {
    if (flats_[shown_] > 0) {
      units_[shown_]->publish();
      if (fences_) fences_->barrier();
    }
    const std::lock_guard lock(mutex_);
    ++shown_;
    changed_.notify_all();
  }
}

}  // namespace tessera::fsdp
