#pragma once
// Ranks on several hosts. Inside a host they share memory as ever; across, each byte goes once to each host:
//  - gathers: first inside the host, then the hosts exchange their parts, lane k (the k-th rank of each host) the k-th
//    piece of them, and share what has come inside the host;
//  - sums are made in rank order, so that the bits are those of a single host with all the ranks. Small ones: every
//  rank
//    gets all inputs. Else *directly*, where the inputs of a host's ranks are not longer than their sum: each rank gets
//    from every host the inputs for its slice (hosts_direct.cc). Else by a *chain*: host 0 sums and passes the fp32 sum
//    on, host 1 continues it with its ranks, and so on, hosts working on different chunks at a time, lanes dividing the
//    vector; the last host sends results to their owners, or, where all want all, around (hosts_chain.cc).
// Operations go through the queue of the GroupCommunicator of this host's ranks, whose announcements are compared on
// each host, and then between hosts (wire.h).
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "comm/group/group_communicator.h"
#include "comm/hosts/hosts.h"
#include "comm/hosts/network.h"
#include "comm/hosts/wire.h"

namespace tessera::comm {

/// Memory that one operation after the other uses: fresh pages would cost more than what is done with them.
class Scratch {
 public:
  /// Not initialised; what was given before is void.
  std::byte* at_least(std::int64_t bytes) {
    if (bytes > size_) memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    size_ = std::max(size_, bytes);
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::int64_t size_ = 0;
};

class HostsCommunicator : public Communicator, public std::enable_shared_from_this<HostsCommunicator> {
 public:
  /// Collective. `local`: the ranks of `hosts` that are on this host, `host`: which one that is. `name`: the same on
  /// all ranks, another for each group.
  HostsCommunicator(std::shared_ptr<Network> network, std::shared_ptr<GroupCommunicator> local, Hosts hosts, int host,
                    std::string name);
  ~HostsCommunicator() override;

  int rank() const noexcept override { return hosts_.first(host_) + local_->rank(); }
  int size() const noexcept override { return hosts_.ranks(); }
  std::string backend() const override { return "hosts"; }

  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions options) override;
  std::unique_ptr<Work> reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs, ReduceOptions options) override;
  std::unique_ptr<Work> all_reduce(at::Tensor t, ReduceOp op) override;
  std::unique_ptr<Work> broadcast(at::Tensor t, int src) override;
  void barrier() override;

  std::vector<Bytes> gather(const Bytes& object, int dst) override;
  std::vector<Bytes> all_gather_objects(const Bytes& object) override;
  Bytes scatter(const std::vector<Bytes>& objects, int src) override;
  Bytes broadcast_object(const Bytes& object, int src) override;

  /// Peers on this host read it; other hosts hear it when this host speaks of a failure.
  void note_activity(const std::string& what) override { local_->note_activity(what); }
  RankRecord* record() override { return local_->record(); }
  std::string failure() const override { return local_->failure(); }
  Peers peers() const override { return local_->peers(); }
  void tell_failure(const std::string& why) override { local_->tell_failure(why); }
  std::shared_ptr<Communicator> split(int color) override;
  /// Null: hosts share no memory.
  std::shared_ptr<SharedRegion> map_shared(std::int64_t size_bytes) override;

 private:
  /// Bytes of each host, one after the other in one buffer that every rank has.
  struct Blocks {
    std::byte* data;
    std::vector<std::int64_t> ends;  // by host
    const std::byte* own;            // this host's, if it lies elsewhere
    std::int64_t begin(int h) const { return h == 0 ? 0 : ends[static_cast<std::size_t>(h - 1)]; }
    std::int64_t length(int h) const { return ends[static_cast<std::size_t>(h)] - begin(h); }
  };
  /// Of a lane's slice: chunk number `index`, which has been passed on or, on the last host, summed.
  using ChunkDone = std::function<void(std::int64_t index, std::int64_t begin, std::int64_t count)>;
  using RoundDone = std::function<void(std::int64_t round)>;

  Group& group() const { return local_->group(); }
  Arguments arguments() const { return {group(), size(), local_->queue().started()}; }
  bool is_lane() const { return wire_ != nullptr; }
  bool is_last_host() const { return host_ == hosts_.count() - 1; }

  std::unique_ptr<Work> submit(const Announcement& announcement, std::function<void()> run,
                               Progress progress = Progress::kByItself);
  void submit_and_wait(const Announcement& announcement, std::function<void()> run);
  // Parts of running operations; all ranks of the host call them together.
  void gather_inside(const std::byte* own, std::byte* out, const std::vector<std::int64_t>& lengths);
  void gather_all(const std::byte* own, std::byte* out, const std::vector<std::int64_t>& lengths);
  void exchange_blocks(const Blocks& blocks);
  void spread(std::byte* data, std::int64_t bytes, int src);
  void share_lanes(std::byte* data, std::int64_t bytes);
  std::vector<std::int64_t> all_sizes();
  bool sums_directly(c10::ScalarType type) const;
  void sum_directly(Elements in, const std::vector<Slice>& slices, Elements out, const Reduction& reduction,
                    const RoundDone& done = {});
  void all_reduce_small(const at::Tensor& t, ReduceOp op);
  void all_reduce_directly(const at::Tensor& t, ReduceOp op);
  void all_reduce_by_chain(const at::Tensor& t, ReduceOp op);
  void reduce_scatter_by_chain(const at::Tensor& out, const at::Tensor& in, const ReduceOptions& options);
  void chain(Elements in, std::int64_t numel, Elements sums, const Reduction& reduction, const ChunkDone& done);
  void deliver_sums(const std::byte* sums, std::int64_t kept_begin, const at::Tensor& out, c10::ScalarType type,
                    const ReduceOptions& options);
  void wait(Wire::Message message) { wire_->wait(message); }
  void wait(std::vector<Wire::Message>& messages) {
    if (is_lane()) wire_->wait(messages);
  }

  std::shared_ptr<Network> network_;
  std::shared_ptr<GroupCommunicator> local_;
  Hosts hosts_;
  int host_;
  std::string name_;
  int splits_ = 0;
  Scratch received_, before_, after_, sums_, own_sum_;
  std::unique_ptr<Wire> wire_;  // null: this rank talks to its own host only
};

}  // namespace tessera::comm
