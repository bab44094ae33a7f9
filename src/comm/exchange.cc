#include "comm/exchange.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr useconds_t kLookMicroseconds = 5'000;

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
    std::vector<std::string> keys, result;
    for (int r = 0; r < exchange_.size; ++r) keys.push_back(key(r));
    wait_for(keys);
    for (const std::string& k : keys) {
      const auto value = store_->get(k);
      result.emplace_back(value.begin(), value.end());
    }
    store_->add(exchange_.prefix + "read", 1);
    if (is_server()) stay_until_all_have_read();
    return result;
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
      // The store's client writes a line for each attempt; so it is not asked to try before somebody listens.
      if (!is_server()) connect_before(exchange_.store, deadline_);
      options.timeout = left();
      store_ = c10::make_intrusive<c10d::TCPStore>(exchange_.store.address, options);
    } catch (const std::exception& error) {
      if (is_server()) {
        throw ConfigError(fmt::format("rank 0 cannot open the rendezvous at {} (MASTER_ADDR:MASTER_PORT): {}. Give the "
                                      "address of the host of rank 0 and a port that is free there.",
                                      place(), first_line(error.what())),
                          "MASTER_PORT");
      }
      throw CommError(fmt::format("rank {}: connect: no answer from {} (MASTER_ADDR:MASTER_PORT) within {} ms: {}. Is "
                                  "rank 0 running, and is that the address of its host?",
                                  exchange_.rank, place(), exchange_.timeout.count(), first_line(error.what())),
                      0, "connect", 0);
    }
  }

  /// Looks again and again: the store's own waiting ends with a broken connection, and then nobody knows who is
  /// missing.
  void wait_for(const std::vector<std::string>& keys) {
    try {
      while (!store_->check(keys)) {
        if (std::chrono::steady_clock::now() > deadline_) fail_missing(keys);
        ::usleep(kLookMicroseconds);
      }
    } catch (const c10::Error&) {
      throw CommError(
          fmt::format("rank {}: connect: the rendezvous at {} has ended: rank 0 or its launcher has failed. "
                      "Look at its output.",
                      exchange_.rank, place()),
          0, "connect", 0);
    }
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

  void stay_until_all_have_read() {
    while (store_->add(exchange_.prefix + "read", 0) < exchange_.size && std::chrono::steady_clock::now() < deadline_) {
      ::usleep(kLookMicroseconds);
    }
  }

  /// libtorch's messages carry a backtrace.
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  const Exchange& exchange_;
  Deadline deadline_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::vector<std::string> exchange_texts(const Exchange& exchange, const std::string& mine) {
  return TextExchange(exchange).run(mine);
}

}  // namespace tessera::comm
