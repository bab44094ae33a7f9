// Collectives of device tensors through the host's memory.
#include <ATen/ops/empty.h>

#include "comm/device/device_communicator.h"

namespace tessera::comm {
namespace {

/// An operation of the host's group, and where its result goes.
class Staged final : public Work {
 public:
  Staged(std::unique_ptr<Work> work, at::Tensor result, at::Tensor out)
      : work_(std::move(work)), result_(std::move(result)), out_(std::move(out)) {}
  ~Staged() override {
    try {
      if (work_) Staged::wait();
    } catch (...) {  // a group that is broken has said so already
    }
  }
  void wait() override {
    if (!work_) return;
    work_->wait_input_free();  // `in` was copied: what peers read is the copy
    work_.reset();
    out_.copy_(result_);
    out_ = result_ = at::Tensor();
  }

 private:
  std::unique_ptr<Work> work_;
  at::Tensor result_, out_;
};

class StagedEngine final : public DeviceEngine {
 public:
  explicit StagedEngine(std::shared_ptr<Communicator> host) : host_(std::move(host)) {}
  std::string name() const override { return "host memory"; }

  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) override {
    auto result = on_host(out);
    auto work = host_->all_gather(result, in.cpu());
    return std::make_unique<Staged>(std::move(work), std::move(result), std::move(out));
  }
  std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions how) override {
    auto result = how.accumulate ? out.cpu() : on_host(out);
    auto work = host_->reduce_scatter(result, in.cpu(), how);
    return std::make_unique<Staged>(std::move(work), std::move(result), std::move(out));
  }
  std::unique_ptr<Work> all_reduce(at::Tensor t, ReduceOp op) override {
    auto result = t.cpu();
    auto work = host_->all_reduce(result, op);
    return std::make_unique<Staged>(std::move(work), std::move(result), std::move(t));
  }
  std::unique_ptr<Work> broadcast(at::Tensor t, int src) override {
    auto result = t.cpu();
    auto work = host_->broadcast(result, src);
    return std::make_unique<Staged>(std::move(work), std::move(result), std::move(t));
  }
  std::unique_ptr<DeviceEngine> split(std::shared_ptr<Communicator> part) override {
    return make_staged_engine(std::move(part));
  }

 private:
  static at::Tensor on_host(const at::Tensor& t) { return at::empty(t.sizes(), t.options().device(at::kCPU)); }

  std::shared_ptr<Communicator> host_;
};

}  // namespace

std::unique_ptr<DeviceEngine> make_staged_engine(std::shared_ptr<Communicator> host) {
  return std::make_unique<StagedEngine>(std::move(host));
}

}  // namespace tessera::comm
