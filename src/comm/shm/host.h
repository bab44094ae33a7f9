#pragma once
// What the groups of one world need from where their ranks live: memory that all of a group address, who is still
// alive, and one place to say that the world has failed. A rank has one Host; groups made by split() share it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/rank_record.h"
#include "tessera/comm/communicator.h"

namespace tessera::comm {

/// Why the world has failed. Lies in memory that all ranks address; the first writer wins.
struct AbortRecord {
  std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 valid
  std::int32_t rank;
  char text[2040];

  void set(int rank, std::string_view text);
  bool is_set() const { return state.load() == 2; }
};

class Host {
 public:
  virtual ~Host() = default;
  virtual std::string backend() const = 0;
  /// This rank among the ranks of this host, which are numbered from 0.
  virtual int host_rank() const = 0;
  /// What rank 0 of this host is called in the world, and so in messages and errors.
  virtual int first_rank() const { return 0; }
  virtual AbortRecord& abort_record() const = 0;
  /// What a rank of this host is doing.
  virtual RankRecord& rank_record(int host_rank) const = 0;
  /// True when the world's ranks have a core each, so that a short busy wait takes time from nobody.
  virtual bool may_spin() const = 0;
  /// True when the process of this rank of the host has ended, in good order or not.
  virtual bool has_ended(int host_rank) const = 0;

  /// Memory for a group, in two steps. The first member creates it and gives the others a ticket; what it needs to
  /// reach them is on its way when it returns. The others open the ticket. Zero-initialised. Throws CommError.
  virtual std::shared_ptr<SharedRegion> create(std::int64_t size_bytes, std::span<const int> members,
                                               Bytes& ticket) = 0;
  virtual std::shared_ptr<SharedRegion> open(std::int64_t size_bytes, const Bytes& ticket) = 0;

  /// Memory of map_shared(): peers see what is written there.
  void remember(const std::shared_ptr<SharedRegion>& region);
  bool is_shared(const std::byte* data, std::int64_t size_bytes) const;

 private:
  std::vector<std::weak_ptr<SharedRegion>> regions_;
};

}  // namespace tessera::comm
