// Gradients that stay on the device that computes them, of a rank that shares no parameter with others.
#include "fsdp/grads/gradient_transport.h"

namespace tessera::fsdp {
namespace {

/// Nothing is waited for: the device does what it is told in that order.
struct Queued final : comm::Work {
  void wait() override {}
};

class DeviceTransport final : public GradientTransport {
 public:
  bool has_places() const override { return false; }
  at::ScalarType contribution_dtype(const GradientBucket& b, std::size_t segment) const override {
    return b.segments[segment].reduce;
  }
  /// The contribution becomes the sum, where it is as wide.
  at::Tensor place_of_sum(const GradientBucket& b, std::size_t segment) const override {
    const auto& contribution = b.buffers()[segment];
    return contribution.scalar_type() == b.segments[segment].leaf.scalar_type() ? contribution : at::Tensor();
  }
  /// Scaled in the dtype of `out`, which is the wider one, as the communicators do.
  std::unique_ptr<comm::Work> reduce(const GradientBucket& b, std::size_t segment, const at::Tensor& out,
                                     comm::ReduceOptions how) override {
    const auto& contribution = b.buffers()[segment];
    if (how.accumulate)
      out.add_(contribution, how.scale);
    else if (out.is_same(contribution))
      how.scale == 1 ? out : out.mul_(how.scale);
    else if (how.scale == 1)
      out.copy_(contribution);
    else
      out.copy_(contribution).mul_(how.scale);
    return std::make_unique<Queued>();
  }
};

}  // namespace

std::unique_ptr<GradientTransport> make_device_transport() {
  return std::make_unique<DeviceTransport>();
}

}  // namespace tessera::fsdp
