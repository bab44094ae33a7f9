#pragma once
// A variable that has another value for a while.
#include <utility>

namespace tessera {

/// While it lives, `place` holds `value`; then what it held before. Of a thread's variable: in that thread.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& place, T value) : place_(place), before_(std::exchange(place, std::move(value))) {}
  ~ScopedValue() { place_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& place_;
  T before_;
};

}  // namespace tessera
