#pragma once
// What a group needs besides a wire: a host with one rank of two, and a transport that moves nothing.
#include <memory>
#include <span>
#include <string>

#include "comm/hosts/transport.h"
#include "comm/shm/host.h"

namespace tessera::test {

class LonelyHost : public comm::Host {
 public:
  std::string backend() const override { return "test"; }
  int host_rank() const override { return 0; }
  comm::AbortRecord& abort_record() const override { return abort_; }
  RankRecord& rank_record(int) const override { return ranks_[0]; }
  bool may_spin() const override { return false; }
  bool has_ended(int) const override { return false; }
  std::shared_ptr<comm::SharedRegion> create(std::int64_t, std::span<const int>, comm::Bytes&) override { return {}; }
  std::shared_ptr<comm::SharedRegion> open(std::int64_t, const comm::Bytes&) override { return {}; }

 private:
  mutable comm::AbortRecord abort_{};
  RankRecords ranks_{0, 1, 2};
};

class NoTransport : public comm::Transport {
 public:
  std::unique_ptr<Message> send(int, const std::byte*, std::int64_t, int) override { return {}; }
  std::unique_ptr<Message> receive(int, std::byte*, std::int64_t, int) override { return {}; }
  bool wait(Message&) override { return true; }
  void interrupt() override {}
  std::string name() const override { return "none"; }
};

}  // namespace tessera::test
