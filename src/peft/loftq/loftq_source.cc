#include "peft/loftq/loftq_source.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <utility>

namespace tessera::peft {

LoftqSource::LoftqSource(std::shared_ptr<const io::TensorSource> dense, std::int64_t iterations)
    : dense_(std::move(dense)), iterations_(iterations) {}

at::Tensor LoftqSource::update_of(const std::string& name, const Matrix& matrix) const {
  const std::lock_guard lock(mutex_);
  auto& factors = factors_[name];
  if (!factors.a.defined()) {
    const auto stored = io::read_tensor(*dense_, name).to(at::kFloat);
    const auto w = matrix.transposed ? stored.t().contiguous() : stored;
    auto rest = w;
    for (std::int64_t i = 1; i < iterations_; ++i) {
      const auto packed = tensor::unpack(tensor::pack(matrix.codec, rest), at::kFloat);
      factors = decomposed(w - packed, "pissa", matrix.rank, 1.0);
      rest = w - at::mm(factors.b, factors.a);
    }
  }
  const auto update = at::mm(factors.b, factors.a);
  return matrix.transposed ? update.t().contiguous() : update;
}

void LoftqSource::read(const std::string& name, std::int64_t begin, at::Tensor out) const {
  const auto matrix = matrices_.find(name);
  if (matrix == matrices_.end()) return dense_->read(name, begin, std::move(out));
  const auto values = at::empty({out.numel()}, at::TensorOptions().dtype(at::kFloat));
  dense_->read(name, begin, values);
  out.copy_(values - update_of(name, matrix->second).view(-1).narrow(0, begin, out.numel()));
}

std::optional<io::MappedTensor> LoftqSource::map(const std::string& name) const {
  return matrices_.contains(name) ? std::nullopt : dense_->map(name);
}

}  // namespace tessera::peft
