#include "comm/device/device_communicator.h"

#include <cstdlib>

#include "base/env.h"
#include "comm/device/device_identity.h"
#include "comm/rendezvous/own_host.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::shared_ptr<Communicator> host, std::unique_ptr<DeviceEngine> engine)
      : host_(std::move(host)), engine_(std::move(engine)) {}

  int rank() const noexcept override { return host_->rank(); }
  int size() const noexcept override { return host_->size(); }
  std::string backend() const override { return host_->backend() + " and " + engine_->name(); }

  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) override {
    if (out.is_cpu()) return host_->all_gather(std::move(out), std::move(in));
    TESSERA_CHECK(out.numel() == size() * in.numel() && out.scalar_type() == in.scalar_type(),
                  "all_gather: `out` has size() times the elements of `in`, and its dtype");
    return engine_->all_gather(std::move(out), std::move(in));
  }
  std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions how) override {
    if (out.is_cpu()) return host_->reduce_scatter(std::move(out), std::move(in), how);
    TESSERA_CHECK(in.numel() == size() * out.numel(), "reduce_scatter: `in` has size() times the elements of `out`");
    return engine_->reduce_scatter(std::move(out), std::move(in), how);
  }
  std::unique_ptr<Work> reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs, ReduceOptions how) override {
    return host_->reduce_shared(std::move(out), std::move(inputs), how);
  }
  std::unique_ptr<Work> all_reduce(at::Tensor t, ReduceOp op) override {
    return t.is_cpu() ? host_->all_reduce(std::move(t), op) : engine_->all_reduce(std::move(t), op);
  }
  std::unique_ptr<Work> broadcast(at::Tensor t, int src) override {
    return t.is_cpu() ? host_->broadcast(std::move(t), src) : engine_->broadcast(std::move(t), src);
  }
  void barrier() override {
    engine_->check();
    host_->barrier();
  }

  std::vector<Bytes> gather(const Bytes& object, int dst) override { return host_->gather(object, dst); }
  std::vector<Bytes> all_gather_objects(const Bytes& object) override {
    engine_->check();
    return host_->all_gather_objects(object);
  }
  Bytes scatter(const std::vector<Bytes>& objects, int src) override { return host_->scatter(objects, src); }
  Bytes broadcast_object(const Bytes& object, int src) override { return host_->broadcast_object(object, src); }

  std::shared_ptr<Communicator> split(int color) override {
    auto part = host_->split(color);
    auto engine = engine_->split(part);
    return std::make_shared<DeviceCommunicator>(std::move(part), std::move(engine));
  }
  void note_activity(const std::string& what) override { host_->note_activity(what); }
  RankRecord* record() override { return host_->record(); }
  std::string failure() const override { return host_->failure(); }
  Peers peers() const override { return host_->peers(); }
  void tell_failure(const std::string& why) override { host_->tell_failure(why); }
  std::shared_ptr<SharedRegion> map_shared(std::int64_t size_bytes) override { return host_->map_shared(size_bytes); }

 private:
  std::shared_ptr<Communicator> host_;
  std::unique_ptr<DeviceEngine> engine_;
};

}  // namespace

std::shared_ptr<Communicator> with_device(std::shared_ptr<Communicator> host, std::unique_ptr<DeviceEngine> engine) {
  return std::make_shared<DeviceCommunicator>(std::move(host), std::move(engine));
}

std::shared_ptr<Communicator> with_device(std::shared_ptr<Communicator> host, at::Device device) {
  const auto wanted = environment("TESSERA_DEVICE_TRANSPORT").value_or("");
  if (!wanted.empty() && wanted != "nccl" && wanted != "host")
    throw ConfigError("TESSERA_DEVICE_TRANSPORT: expected nccl or host, found '" + wanted + "'",
                      "TESSERA_DEVICE_TRANSPORT");
  const bool shared = !find_shared_device(*host, device).ranks.empty();
  const bool nccl = wanted.empty() ? device.is_cuda() && !shared : wanted == "nccl";
  // NCCL refuses ranks of one host that share a GPU, so they say that they are on several: for trials, not for speed.
  if (nccl && shared) ::setenv("NCCL_HOSTID", (own_host() + " " + std::to_string(host->rank())).c_str(), 0);
  auto engine = nccl ? make_nccl_engine(host, device) : make_staged_engine(host);
  return with_device(std::move(host), std::move(engine));
}

}  // namespace tessera::comm
