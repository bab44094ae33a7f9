#include "optim/flat_numbers.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace tessera::optim {

float* FlatNumbers::read(std::int64_t at, std::int64_t count, float* buffer) const {
  if (halves) {
    halves->read(at, count, buffer);
    return buffer;
  }
  if (dtype == at::kFloat) return static_cast<float*>(data) + at;
  const auto widen = [&](const auto* values) { std::copy(values + at, values + at + count, buffer); };
  dtype == at::kBFloat16 ? widen(static_cast<const at::BFloat16*>(data)) : widen(static_cast<const at::Half*>(data));
  return buffer;
}

void FlatNumbers::write(std::int64_t at, std::int64_t count, const float* values) const {
  if (halves) return halves->write(at, count, values);
  if (dtype == at::kFloat) return;
  const auto narrow = [&](auto* numbers) { std::copy(values, values + count, numbers + at); };
  dtype == at::kBFloat16 ? narrow(static_cast<at::BFloat16*>(data)) : narrow(static_cast<at::Half*>(data));
}

}  // namespace tessera::optim
