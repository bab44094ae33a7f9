#pragma once
// The Communicator of every backend: operations over a Group, run by an OperationQueue.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group/arguments.h"
#include "comm/group/group.h"
#include "comm/group/operation_queue.h"
#include "comm/group/rounds.h"

namespace tessera::comm {

class GroupCommunicator : public Communicator, public std::enable_shared_from_this<GroupCommunicator> {
 public:
  explicit GroupCommunicator(std::unique_ptr<Group> group) : group_(std::move(group)) {}

  int rank() const noexcept override { return group_->rank(); }
  int size() const noexcept override { return group_->size(); }
  std::string backend() const override { return group_->host().backend(); }

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

  void note_activity(const std::string& what) override { group_->record().set_activity(what); }
  RankRecord* record() override { return &group_->record(); }
  std::string failure() const override { return group_->failure(); }
  Peers peers() const override { return group_->peers(); }
  void tell_failure(const std::string& why) override {
    group_->host().abort_record().set(group_->name(group_->rank()), why);
  }
  std::shared_ptr<Communicator> split(int color) override;
  std::shared_ptr<SharedRegion> map_shared(std::int64_t size_bytes) override;

  /// Starts an operation whose part here is `run`, which peers need not wait for to read this rank's memory. The work
  /// keeps `owner`.
  std::unique_ptr<Work> submit(const Announcement& announcement, std::function<void()> run, Progress progress,
                               std::shared_ptr<Communicator> owner);
  /// The sizes that ranks announced for the operation that is running.
  std::int64_t announced_bytes(int r) const;
  Group& group() { return *group_; }
  OperationQueue& queue() { return queue_; }

  int reductions_in_flight = 0;  // reduce_shared: started and not waited for

 private:
  void start_and_complete(const Announcement& announcement, std::function<void()> run);
  /// Collective: memory that all ranks of `members` (a part of this group) address.
  std::shared_ptr<SharedRegion> share(std::int64_t size_bytes, const std::vector<int>& members);
  template <class Call>
  auto sharing(std::int64_t size_bytes, const Call& call);
  [[noreturn]] void fail(int world_rank, const std::string& message);
  Arguments arguments() const { return {*group_, size(), queue_.started()}; }
  Progress progress() const;
  Progress progress_if_large(const at::Tensor& t) const;

  std::unique_ptr<Group> group_;
  OperationQueue queue_{*group_};
};

}  // namespace tessera::comm
