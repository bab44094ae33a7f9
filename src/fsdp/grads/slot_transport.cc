// Gradients in memory that all ranks of a host address: see Notes [Slots] and [Dtype of contributions].
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "comm/device/pinned_region.h"
#include "fsdp/grads/gradient_transport.h"

namespace tessera::fsdp {
namespace {

/// Of contributions that may be as narrow as they were computed.
at::ScalarType narrow_dtype(const TrainableSegment& s) {
  return c10::elementSize(s.layout.compute) < c10::elementSize(s.reduce) ? s.layout.compute : s.reduce;
}

std::int64_t bytes_in(const TrainableSegment& s, at::ScalarType dtype) {
  return s.layout.numel * static_cast<std::int64_t>(c10::elementSize(dtype));
}

class SlotTransport final : public GradientTransport {
 public:
  SlotTransport(const Mesh& mesh, at::Device device)
      : group_(mesh.shard), device_(device), replicated_(mesh.replicate != nullptr) {}

  void prepare(const std::vector<GradientBucket>& buckets) override {
    slots_ = GradientSlots(users_of(buckets));
    if (buckets.empty()) return;
    const auto bytes = std::max<std::int64_t>(1, slots_.bytes()) * group_->size();
    region_ = comm::pinned(group_->map_shared(bytes), device_);
  }
  void set_order(const std::vector<int>& order) override {
    if (region_) slots_.set_order(order);
  }
  void set_width(SlotWidth width) override { width_ = width; }

  bool has_places() const override { return region_ != nullptr; }
  int previous_user(const GradientBucket& b) const override { return slots_.at(b.index, width_).previous_user; }

  std::vector<at::Tensor> take_place(GradientBucket& b) override {
    if (width_ == SlotWidth::kWide) wide_slots_used_ = true;
    std::vector<at::Tensor> places;
    for (std::size_t i = 0; i < b.segments.size(); ++i) {
      if (holds_sum(b, i)) b.segments[i].leaf.mutable_grad() = b.segments[i].leaf.grad().clone();
      places.push_back(contribution(b, i, group_->rank()));
    }
    return places;
  }

  at::ScalarType contribution_dtype(const GradientBucket& b, std::size_t segment) const override {
    const auto& s = b.segments[segment];
    return slots_.narrow(b.index, width_) ? narrow_dtype(s) : s.reduce;
  }

  /// A slot that is nobody else's is idle from here to the next backward.
  at::Tensor place_of_sum(const GradientBucket& b, std::size_t segment) const override {
    return keeps_sum(b, segment) ? own_slice(b, segment) : at::Tensor();
  }
  bool holds_sum(const GradientBucket& b, std::size_t segment) const override {
    const auto& grad = b.segments[segment].leaf.grad();
    return grad.defined() && keeps_sum(b, segment) && grad.const_data_ptr() == own_slice(b, segment).const_data_ptr();
  }

  std::unique_ptr<comm::Work> reduce(const GradientBucket& b, std::size_t segment, const at::Tensor& out,
                                     comm::ReduceOptions how) override {
    const auto slice = b.segments[segment].layout.slice_numel;
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < group_->size(); ++r)
      inputs.push_back(contribution(b, segment, r).narrow(0, slice * group_->rank(), slice));
    return group_->reduce_shared(out, std::move(inputs), how);
  }

  std::int64_t bytes() const override {
    return region_ ? slots_.bytes(wide_slots_used_ ? SlotWidth::kWide : SlotWidth::kNarrow) : 0;
  }

 private:
  std::vector<SlotUser> users_of(const std::vector<GradientBucket>& buckets) const {
    int first_unit = -1;
    for (const auto& b : buckets)
      if (b.unit > 0 && b.position() >= 0 && (first_unit < 0 || b.position() < first_unit)) first_unit = b.position();
    const bool fits_nowhere_else = group_->size() == 1 && !replicated_;  // a sum twice as large as its slot
    std::vector<SlotUser> users;
    for (const auto& b : buckets) {
      auto& user = users.emplace_back();
      for (const auto& s : b.segments) {
        user.wide_bytes += bytes_in(s, s.reduce);
        user.narrow_bytes += bytes_in(s, narrow_dtype(s));
      }
      user.takes_turns = b.unit > 0 || b.alone;
      user.opens_early = b.unit == 0 && b.position() < first_unit;
      user.keeps_sum = !user.takes_turns || user.narrow_bytes == user.wide_bytes || fits_nowhere_else;
    }
    return users;
  }

  /// 1-D [numel]: what this rank adds.
  at::Tensor contribution(const GradientBucket& b, std::size_t segment, int rank) const {
    auto offset = slots_.bytes() * rank + slots_.at(b.index, width_).offset;
    for (std::size_t i = 0; i < segment; ++i) offset += bytes_in(b.segments[i], contribution_dtype(b, i));
    return at::from_blob(region_->data() + offset, {b.segments[segment].layout.numel},
                         at::TensorOptions().dtype(contribution_dtype(b, segment)));
  }

  /// Where this rank's part of its own contribution lies: nobody else reads it.
  at::Tensor own_slice(const GradientBucket& b, std::size_t segment) const {
    const auto& s = b.segments[segment];
    auto* slot = static_cast<std::byte*>(contribution(b, segment, group_->rank()).mutable_data_ptr());
    const auto slice_bytes = bytes_in(s, s.reduce) / group_->size();
    return at::from_blob(
        slot + slice_bytes * group_->rank(), {s.layout.slice_numel}, [region = region_](void*) {},
        at::TensorOptions().dtype(s.reduce));
  }

  bool keeps_sum(const GradientBucket& b, std::size_t segment) const {
    const auto& s = b.segments[segment];
    return region_ && slots_.keeps_sum(b.index) && !replicated_ && s.reduce == s.leaf.scalar_type();
  }

  std::shared_ptr<comm::Communicator> group_;
  at::Device device_;
  bool replicated_;
  std::shared_ptr<comm::SharedRegion> region_;  // null: there is nothing to reduce
  GradientSlots slots_;                         // of buckets, by their index
  SlotWidth width_ = SlotWidth::kNarrow;
  bool wide_slots_used_ = false;
};

}  // namespace

std::unique_ptr<GradientTransport> make_slot_transport(const Mesh& mesh, at::Device device) {
  return std::make_unique<SlotTransport>(mesh, device);
}

}  // namespace tessera::fsdp
