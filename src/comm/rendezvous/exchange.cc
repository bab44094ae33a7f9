#include "comm/rendezvous/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/quiet_thread.h"
#include "base/secret.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr useconds_t kLookMicroseconds = 5'000;
constexpr int kLooksBetweenRepairs = 10;
constexpr std::chrono::seconds kForRepairs{5}, kForGoodbyes{2};
constexpr std::chrono::milliseconds kBetweenCuts{50};

std::vector<std::uint8_t> to_value(const std::string& text) {
  return {text.begin(), text.end()};
}

/// From `limit` on ends this process's connections with a store: its client waits for most answers as long as they
/// take, and a process that is stopped keeps its connections.
class StoreWatch {
 public:
  StoreWatch(Endpoint store, Deadline limit)
      : thread_(start_quiet_thread("store watch", [this, store = std::move(store), limit] { run(store, limit); })) {}
  ~StoreWatch() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StoreWatch(const StoreWatch&) = delete;
  StoreWatch& operator=(const StoreWatch&) = delete;

 private:
  void run(const Endpoint& store, Deadline limit) {
    std::unique_lock lock(mutex_);
    for (; !changed_.wait_until(lock, limit, [this] { return ends_; }); limit += kBetweenCuts) try {
        shut_down_towards(store);
      } catch (const std::exception&) {  // no descriptor is left: again
      }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

class TextExchange {
 public:
  TextExchange(const Exchange& exchange, std::string mine)
      : exchange_(exchange), mine_(std::move(mine)), deadline_(begin_ + patience()) {
    open_store();
  }

  std::vector<std::string> run() {
    std::vector<std::string> texts(static_cast<std::size_t>(exchange_.size));
    watched([&] {
      store_->set(key(exchange_.rank), to_value(mine_));
      wait_for_all();
      agree(texts);
    });
    leave_together();
    return texts;
  }

 private:
  /// Whoever keeps the store does so a little longer than the others ask it, so that they can say who is missing.
  std::chrono::milliseconds patience() const { return is_server() ? exchange_.timeout : exchange_.timeout - less(); }
  std::chrono::milliseconds less() const {
    return std::min<std::chrono::milliseconds>(exchange_.timeout / 5, std::chrono::seconds(2));
  }
  bool is_server() const { return exchange_.rank == 0 && !exchange_.store_is_there; }
  /// Of a rank that asks somebody else's store: time is left to say who is missing, and for libtorch's backtrace.
  Deadline limit_of_answers() const { return begin_ + exchange_.timeout - less() / 2; }
  bool has_no_answer() const { return watch_ && std::chrono::steady_clock::now() >= limit_of_answers(); }
  std::string key(int rank) const { return fmt::format("{}{}", exchange_.prefix, rank); }
  /// Where a rank says which texts it has read.
  std::string seen_key(int rank) const { return fmt::format("{}seen/{}", exchange_.prefix, rank); }
  Deadline after(std::chrono::seconds time) const {
    return std::min<Deadline>(deadline_, std::chrono::steady_clock::now() + time);
  }
  /// With what is wrong in the store and may be put right. Its keeper stays a little longer, so that the others can say
  /// the same.
  Deadline after_repairs() const { return after(is_server() ? kForRepairs + kForGoodbyes : kForRepairs); }
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
      if (!is_server()) watch_.emplace(Endpoint{address, exchange_.store.port}, limit_of_answers());
      store_ = c10::make_intrusive<c10d::TCPStore>(address, options);
      listener.socket.release();  // it is the store's
      keep_alive_towards({address, exchange_.store.port}, keep_alive_time());
    } catch (const std::exception& error) {
      if (is_server()) {
        throw ConfigError(fmt::format("rank 0 cannot open the rendezvous at {} (MASTER_ADDR:MASTER_PORT): {}. Give the "
                                      "address of the host of rank 0 and a port that is free there.",
                                      place(), reason_of(error, "the store does not start there")),
                          "MASTER_PORT");
      }
      if (has_no_answer()) fail_without_answer();
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
      if (has_no_answer()) fail_without_answer();
      throw CommError(
          fmt::format("rank {}: connect: the rendezvous at {} has ended: rank 0 or its launcher has failed. "
                      "Look at its output.",
                      exchange_.rank, place()),
          0, "connect", 0);
    }
  }

  [[noreturn]] void fail_without_answer() const {
    throw CommError(
        fmt::format(
            "rank {}: connect: {} at {} (MASTER_ADDR:MASTER_PORT) takes connections and has not answered within "
            "{} ms. Is that process stopped ('kill -CONT PID' on its host lets it go on)? Does something else "
            "listen there? Else look at its output.",
            exchange_.rank, exchange_.store_is_there ? "torchrun's store" : "the store of rank 0", place(),
            exchange_.timeout.count()),
        0, "connect", 0);
  }

  std::string text_at(const std::string& place) {
    const auto value = store_->get(place);
    return {value.begin(), value.end()};
  }

  /// Looks again and again: the store's own waiting ends with a broken connection, and then nobody knows who is
  /// missing.
  void wait_for_all() {
    std::vector<std::string> keys;
    for (int r = 0; r < exchange_.size; ++r) keys.push_back(key(r));
    for (int looks = 0; !store_->check(keys); ++looks) {
      if (std::chrono::steady_clock::now() > deadline_)
        fail_missing([this](int r) { return !store_->check({key(r)}); });
      if (looks % kLooksBetweenRepairs == 0) put_right();
      ::usleep(kLookMicroseconds);
    }
  }

  /// Until all ranks have read the same texts, so that each is a living rank's: torchrun keeps its store when it starts
  /// ranks again, and what an ended process has left there nobody confirms.
  void agree(std::vector<std::string>& texts) {
    const Deadline patience = after_repairs();
    int agreed = 0;  // the ranks before this one have
    for (int looks = 0;; ++looks) {
      if (looks % kLooksBetweenRepairs == 0) {
        put_right();
        for (int r = 0; r < exchange_.size; ++r) texts[static_cast<std::size_t>(r)] = genuine_text(r);
      }
      if (go_together(texts, patience)) {
        if (say_seen(texts)) agreed = 0;
        const auto differs = [this](int r) { return !store_->check({seen_key(r)}) || text_at(seen_key(r)) != seen_; };
        while (agreed < exchange_.size && !differs(agreed)) ++agreed;
        if (agreed == exchange_.size) return;
        if (std::chrono::steady_clock::now() > deadline_) fail_missing(differs);
      }
      ::usleep(kLookMicroseconds);
    }
  }

  bool go_together(const std::vector<std::string>& texts, Deadline patience) const {
    try {
      exchange_.check(texts);
      return true;
    } catch (const Error&) {
      if (std::chrono::steady_clock::now() > patience) throw;
      return false;
    }
  }

  /// False where it has been said.
  bool say_seen(const std::vector<std::string>& texts) {
    const std::string seen = to_hex(hmac_sha256("", fmt::format("{}", fmt::join(texts, "\n"))));
    if (seen == seen_) return false;
    seen_ = seen;
    store_->set(seen_key(exchange_.rank), to_value(seen_));
    return true;
  }

  std::string genuine_text(int rank) {
    if (rank == exchange_.rank) return mine_;
    const Deadline patience = after_repairs();
    while (true) {
      std::string text = text_at(key(rank));
      if (exchange_.is_genuine(rank, text)) return text;
      if (std::chrono::steady_clock::now() > patience) fail_not_genuine(rank);
      put_right();
      ::usleep(kLookMicroseconds);
    }
  }

  /// What somebody else has written in this rank's places.
  void put_right() {
    if (!seen_.empty() && text_at(seen_key(exchange_.rank)) != seen_)
      store_->set(seen_key(exchange_.rank), to_value(seen_));
    const std::string there = text_at(key(exchange_.rank));
    if (there == mine_) return;
    if (exchange_.is_genuine(exchange_.rank, there)) {
      throw ConfigError(
          fmt::format("another process is rank {0} of this job already (at {1}): give each process its own "
                      "RANK, each job its own MASTER_PORT",
                      exchange_.rank, place()),
          "RANK");
    }
    store_->set(key(exchange_.rank), to_value(mine_));
  }

  [[noreturn]] void fail_not_genuine(int rank) {
    throw CommError(
        fmt::format("rank {0}: connect: what lies at {1} for rank {2} is not signed with this job's secret. "
                    "Is TESSERA_SECRET the same for all ranks, and tessera's version? Does another job, or a "
                    "stranger, use that port?",
                    exchange_.rank, place(), rank),
        rank, "connect", 0);
  }

  template <class IsMissing>
  [[noreturn]] void fail_missing(const IsMissing& is_missing) {
    std::string missing;
    int first = -1;
    for (int r = 0; r < exchange_.size; ++r) {
      if (!is_missing(r)) continue;
      if (first < 0) first = r;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
    }
    throw CommError(
        fmt::format("rank {}: connect: after {} ms these of {} ranks are missing: {}. Did their hosts start, "
                    "with the same MASTER_ADDR and MASTER_PORT ({})?",
                    exchange_.rank, exchange_.timeout.count(), exchange_.size, missing, place()),
        first, "connect", 0);
  }

  /// Ranks stay, to put their texts right, until all have read; the store's keeper until all have gone. What is left in
  /// a store that stays hinders no later exchange: counters are this one's own.
  void leave_together() {
    try {
      const std::string read = exchange_.prefix + "read/" + seen_, gone = exchange_.prefix + "gone/" + seen_;
      store_->add(read, 1);
      for (int looks = 1; !has_counted(read, exchange_.size); ++looks) {
        if (looks % kLooksBetweenRepairs == 0) put_right();
        ::usleep(kLookMicroseconds);
      }
      for (const std::string& place : {key(exchange_.rank), seen_key(exchange_.rank)}) store_->deleteKey(place);
      store_->add(gone, 1);
      deadline_ = after(kForGoodbyes);
      while (is_server() && !has_counted(gone, exchange_.size)) ::usleep(kLookMicroseconds);
    } catch (const c10::Error&) {  // rank 0 has ended: whoever calls it will notice
    }
  }

  bool has_counted(const std::string& counter, int count) {
    return store_->add(counter, 0) >= count || std::chrono::steady_clock::now() > deadline_;
  }

  /// Errors of libtorch speak of its own functions and carry a backtrace: `instead` takes their place.
  static std::string reason_of(const std::exception& error, const char* instead) {
    return dynamic_cast<const c10::Error*>(&error) != nullptr ? instead : error.what();
  }

  const Exchange& exchange_;
  const std::string mine_;
  std::string seen_;  // stands for the texts that this rank has read; empty: none yet
  const Deadline begin_ = std::chrono::steady_clock::now();
  Deadline deadline_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::optional<StoreWatch> watch_;  // of somebody else's store
};

}  // namespace

std::vector<std::string> exchange_texts(const Exchange& exchange, const std::string& mine) {
  return TextExchange(exchange, mine).run();
}

}  // namespace tessera::comm
