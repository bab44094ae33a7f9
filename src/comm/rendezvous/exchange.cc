#include "comm/rendezvous/exchange.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr useconds_t kLookMicroseconds = 5'000;
constexpr int kLooksBetweenRepairs = 10;
constexpr std::chrono::seconds kForRepairs{5}, kForGoodbyes{2};

std::vector<std::uint8_t> to_value(const std::string& text) {
  return {text.begin(), text.end()};
}

class TextExchange {
 public:
  explicit TextExchange(const Exchange& exchange)
      : exchange_(exchange), deadline_(std::chrono::steady_clock::now() + patience(exchange)) {
    open_store();
  }

  std::vector<std::string> run(const std::string& mine) {
    store_->set(key(exchange_.rank), to_value(mine));
    std::vector<std::string> texts(static_cast<std::size_t>(exchange_.size));
    watched([&] {
      wait_for_all(mine);
      for (int r = 0; r < exchange_.size; ++r) texts[static_cast<std::size_t>(r)] = genuine_text(r, mine);
    });
    leave_together(mine);
    return texts;
  }

 private:
  /// Rank 0 keeps the store a little longer than the others ask it, so that they can say who is missing.
  static std::chrono::milliseconds patience(const Exchange& e) {
    const auto less = std::min<std::chrono::milliseconds>(e.timeout / 5, std::chrono::seconds(2));
    return e.rank == 0 ? e.timeout : e.timeout - less;
  }
  bool is_server() const { return exchange_.rank == 0 && !exchange_.store_is_there; }
  std::string key(int rank) const { return fmt::format("{}{}", exchange_.prefix, rank); }
  std::chrono::milliseconds left() const {
    const auto time = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    return std::max(time, std::chrono::milliseconds(1));
  }
  std::string place() const { return fmt::format("{}:{}", exchange_.store.address, exchange_.store.port); }

  void open_store() {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(exchange_.store.port);
    options.isServer = is_server();
    options.waitWorkers = false;
    try {
      Listener listener;
      if (is_server()) {
        listener = listen_at({listening_address(exchange_.store), exchange_.store.port});
        options.masterListenFd = listener.socket.get();
      }
      // The store's client writes a line for each attempt; so it is not asked to try before somebody listens, and only
      // where that is.
      const std::string address = peer_address(connect_before(exchange_.store, deadline_));
      options.timeout = left();
      store_ = c10::make_intrusive<c10d::TCPStore>(address, options);
      listener.socket.release();  // it is the store's
    } catch (const std::exception& error) {
      if (is_server()) {
        throw ConfigError(fmt::format("rank 0 cannot open the rendezvous at {} (MASTER_ADDR:MASTER_PORT): {}. Give the "
                                      "address of the host of rank 0 and a port that is free there.",
                                      place(), reason_of(error, "the store does not start there")),
                          "MASTER_PORT");
      }
      throw CommError(fmt::format("rank {}: connect: no answer from {} (MASTER_ADDR:MASTER_PORT) within {} ms: {}. Is "
                                  "rank 0 running, and is that the address of its host?",
                                  exchange_.rank, place(), exchange_.timeout.count(),
                                  reason_of(error, "what listens there is no store of torch")),
                      0, "connect", 0);
    }
  }

  template <class Call>
  void watched(const Call& call) {
    try {
      call();
    } catch (const c10::Error&) {
      throw CommError(
          fmt::format("rank {}: connect: the rendezvous at {} has ended: rank 0 or its launcher has failed. "
                      "Look at its output.",
                      exchange_.rank, place()),
          0, "connect", 0);
    }
  }

  std::string text_of(int rank) {
    const auto value = store_->get(key(rank));
    return {value.begin(), value.end()};
  }

  /// Looks again and again: the store's own waiting ends with a broken connection, and then nobody knows who is
  /// missing.
  void wait_for_all(const std::string& mine) {
    std::vector<std::string> keys;
    for (int r = 0; r < exchange_.size; ++r) keys.push_back(key(r));
    for (int looks = 0; !store_->check(keys); ++looks) {
      if (std::chrono::steady_clock::now() > deadline_) fail_missing(keys);
      if (looks % kLooksBetweenRepairs == 0) put_right(mine);
      ::usleep(kLookMicroseconds);
    }
  }

  std::string genuine_text(int rank, const std::string& mine) {
    if (rank == exchange_.rank) return mine;
    // The store's keeper stays a little longer, so that the others can say the same.
    const auto longest = is_server() ? kForRepairs + kForGoodbyes : kForRepairs;
    const Deadline patience = std::min<Deadline>(deadline_, std::chrono::steady_clock::now() + longest);
    while (true) {
      std::string text = text_of(rank);
      if (exchange_.is_genuine(rank, text)) return text;
      if (std::chrono::steady_clock::now() > patience) fail_not_genuine(rank);
      put_right(mine);
      ::usleep(kLookMicroseconds);
    }
  }

  /// What somebody else has written in this rank's place.
  void put_right(const std::string& mine) {
    const std::string there = text_of(exchange_.rank);
    if (there == mine) return;
    if (exchange_.is_genuine(exchange_.rank, there)) {
      throw ConfigError(
          fmt::format("another process is rank {0} of this job already (at {1}): give each process its own "
                      "RANK, each job its own MASTER_PORT",
                      exchange_.rank, place()),
          "RANK");
    }
    store_->set(key(exchange_.rank), to_value(mine));
  }

  [[noreturn]] void fail_not_genuine(int rank) {
    throw CommError(
        fmt::format("rank {0}: connect: what lies at {1} for rank {2} is not signed with this job's secret. "
                    "Is TESSERA_SECRET the same for all ranks, and tessera's version? Does another job, or a "
                    "stranger, use that port?",
                    exchange_.rank, place(), rank),
        rank, "connect", 0);
  }

  [[noreturn]] void fail_missing(const std::vector<std::string>& keys) {
    std::string missing;
    int first = -1;
    for (int r = 0; r < exchange_.size; ++r) {
      if (store_->check({keys[static_cast<std::size_t>(r)]})) continue;
      if (first < 0) first = r;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
    }
    throw CommError(
        fmt::format("rank {}: connect: after {} ms these of {} ranks are missing: {}. Did their hosts start, "
                    "with the same MASTER_ADDR and MASTER_PORT ({})?",
                    exchange_.rank, exchange_.timeout.count(), exchange_.size, missing, place()),
        first, "connect", 0);
  }

  /// Ranks stay, to put their texts right, until all have read; the store's keeper until all have gone.
  void leave_together(const std::string& mine) {
    try {
      store_->add(exchange_.prefix + "read", 1);
      for (int looks = 1; !has_counted("read", exchange_.size); ++looks) {
        if (looks % kLooksBetweenRepairs == 0) put_right(mine);
        ::usleep(kLookMicroseconds);
      }
      store_->add(exchange_.prefix + "gone", 1);
      deadline_ = std::min<Deadline>(deadline_, std::chrono::steady_clock::now() + kForGoodbyes);
      while (is_server() && !has_counted("gone", exchange_.size)) ::usleep(kLookMicroseconds);
    } catch (const c10::Error&) {  // rank 0 has ended: whoever calls it will notice
    }
  }

  bool has_counted(const char* what, int count) {
    return store_->add(exchange_.prefix + what, 0) >= count || std::chrono::steady_clock::now() > deadline_;
  }

  /// Errors of libtorch speak of its own functions and carry a backtrace: `instead` takes their place.
  static std::string reason_of(const std::exception& error, const char* instead) {
    return dynamic_cast<const c10::Error*>(&error) != nullptr ? instead : error.what();
  }

  const Exchange& exchange_;
  Deadline deadline_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::vector<std::string> exchange_texts(const Exchange& exchange, const std::string& mine) {
  return TextExchange(exchange).run(mine);
}

}  // namespace tessera::comm
