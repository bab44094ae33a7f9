// Gradients that the communicator moves: between hosts, and where ranks share no memory.
#include "fsdp/grads/gradient_transport.h"

namespace tessera::fsdp {
namespace {

class ReduceScatterTransport final : public GradientTransport {
 public:
  explicit ReduceScatterTransport(const Mesh& mesh) : group_(mesh.shard) {}

  bool has_places() const override { return false; }
  at::ScalarType contribution_dtype(const GradientBucket& b, std::size_t segment) const override {
    return b.segments[segment].reduce;
  }
  std::unique_ptr<comm::Work> reduce(const GradientBucket& b, std::size_t segment, const at::Tensor& out,
                                     comm::ReduceOptions how) override {
    return group_->reduce_scatter(out, b.buffers()[segment], how);
  }

 private:
  std::shared_ptr<comm::Communicator> group_;
};

}  // namespace

std::unique_ptr<GradientTransport> make_reduce_scatter_transport(const Mesh& mesh) {
  return std::make_unique<ReduceScatterTransport>(mesh);
}

}  // namespace tessera::fsdp
