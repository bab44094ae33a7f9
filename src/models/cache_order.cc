#include "models/cache_order.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "tensor/device.h"

namespace tessera::models {

CacheOrder::CacheOrder(const at::Tensor& order, std::int64_t rows, std::int64_t capacity, std::int64_t used)
    : order_(tensor::on_host(order).contiguous()),
      rows_(rows),
      capacity_(capacity),
      used_(used),
      stays_(order_.numel() == rows && order_.equal(at::arange(rows, order_.options()))) {}

void CacheOrder::apply(at::Tensor& store, at::Tensor& spare) const {
  if (!store.defined() || stays_) return;
  const std::int64_t count = order_.numel(), width = store.size(1);
  if (!spare.defined() || spare.size(0) != count * capacity_ || spare.size(1) != width ||
      spare.scalar_type() != store.scalar_type())
    spare = at::empty({count * capacity_, width}, store.options());
  if (store.is_cpu()) {
    const auto row = static_cast<std::size_t>(capacity_ * width) * store.element_size();
    const auto filled = static_cast<std::size_t>(used_ * width) * store.element_size();
    const auto* from = static_cast<const std::byte*>(store.const_data_ptr());
    auto* to = static_cast<std::byte*>(spare.mutable_data_ptr());
    const auto* old_row = order_.const_data_ptr<std::int64_t>();
    at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        std::memcpy(to + static_cast<std::size_t>(i) * row, from + static_cast<std::size_t>(old_row[i]) * row, filled);
    });
  } else {
    const auto part = [&](const at::Tensor& t, std::int64_t rows) {
      return t.view({rows, capacity_, width}).narrow(1, 0, used_);
    };
    part(spare, count).copy_(part(store, rows_).index_select(0, tensor::beside(order_, store)));
  }
  std::swap(store, spare);
}

}  // namespace tessera::models
