#pragma once
// What one rendering may cost: a template is data from strangers, so it must end, in bounded memory.
#include <cstdint>
#include <utility>

namespace tessera::chat {

struct RenderLimits {
  std::int64_t work = 400'000'000;                // in units of one to two nanoseconds
  std::int64_t memory = std::int64_t{256} << 20;  // bytes of all the values and texts that exist together
  int depth = 1500;                               // nested evaluations, macros calling themselves included
};

/// The account of one rendering. While it lives it is its thread's, so that everything that makes, walks or compares
/// values finds it without being handed it; where there is none (the rows of data files) nothing is counted.
class Budget {
 public:
  explicit Budget(const RenderLimits& limits) : limits_(limits), outer_(std::exchange(current_, this)) {}
  ~Budget() { current_ = outer_; }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  static Budget* current() { return current_; }

  /// Before the work is done. Limit error; from then on every call fails.
  void spend(std::int64_t work) {
    if (work < 0 || work > limits_.work - work_) refuse_work();
    work_ += work;
  }
  /// Before the memory is taken. Limit error.
  void hold(std::int64_t bytes) {
    require(bytes);
    held_ += bytes;
  }
  /// Limit error where so much more would not fit.
  void require(std::int64_t bytes) const {
    if (bytes > limits_.memory - held_) refuse_memory();
  }
  void release(std::int64_t bytes) { held_ -= bytes; }

  std::int64_t work() const { return work_; }
  std::int64_t held() const { return held_; }

 private:
  [[noreturn]] void refuse_work();
  [[noreturn]] void refuse_memory() const;

  inline static constinit thread_local Budget* current_ = nullptr;

  RenderLimits limits_;
  Budget* outer_;
  std::int64_t work_ = 0, held_ = 0;
};

inline constexpr std::int64_t kValueWork = 30;  // of printing a value, besides its parts and its text

/// Charges the thread's budget, if there is one.
inline void spend(std::int64_t work) {
  if (Budget* budget = Budget::current()) budget->spend(work);
}
/// For what is needed for a moment only and is not held.
inline void require_memory(std::int64_t bytes) {
  if (const Budget* budget = Budget::current()) budget->require(bytes);
}

/// What something occupies while it lives. It must not outlive the budget it was made under.
class Held {
 public:
  explicit Held(std::int64_t bytes = 0) { add(bytes); }
  Held(const Held& other) : Held(other.bytes_) {}
  Held(Held&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Held& operator=(Held other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Held() {
    if (budget_ != nullptr) budget_->release(bytes_);
  }
  void add(std::int64_t bytes) {
    if (budget_ != nullptr) budget_->hold(bytes);
    bytes_ += bytes;
  }

 private:
  Budget* budget_ = Budget::current();
  std::int64_t bytes_ = 0;
};

}  // namespace tessera::chat
