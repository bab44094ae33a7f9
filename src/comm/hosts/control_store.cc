#include "comm/hosts/control_store.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

/// What goes before a key and its value. No key: the end.
struct Lengths {
  std::uint32_t key = 0, value = 0;
};
constexpr std::uint32_t kLongest = 1 << 20;
constexpr std::size_t kMostBytes = 64 << 20;  // of all entries: an address has some hundred

}  // namespace

void ControlStore::tell_all(const std::string& key, const std::vector<std::uint8_t>& value) {
  const Lengths lengths{static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size())};
  std::string text(reinterpret_cast<const char*>(&lengths), sizeof(lengths));
  text += key;
  text.append(value.begin(), value.end());
  for (const Descriptor* connection : connections_) {
    if (connection != nullptr) send_all(*connection, text.data(), text.size(), deadline_);
  }
}

void ControlStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  values_[key] = value;
  tell_all(key, value);
}

void ControlStore::finish() {
  tell_all("", {});
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    while (connections_[i] != nullptr && !finished_[i]) take_some();
  }
}

/// Waits for entries; who needs one asks again.
void ControlStore::take_some() {
  std::vector<pollfd> waiting;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const bool silent = connections_[i] == nullptr || finished_[i];
    waiting.push_back({silent ? -1 : connections_[i]->get(), POLLIN, 0});
  }
  const bool is_over = std::all_of(waiting.begin(), waiting.end(), [](const pollfd& p) { return p.fd < 0; });
  if (is_over) throw std::system_error(EPROTO, std::generic_category(), "the addresses of the other hosts");
  const int ready = ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline_));
  if (ready == 0 && std::chrono::steady_clock::now() < deadline_) return;  // poll() does not wait for hours
  if (ready == 0) throw std::system_error(ETIMEDOUT, std::generic_category(), "the addresses of the other hosts");
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (ready < 0 || waiting[i].revents == 0) continue;
    Lengths lengths;
    receive_all(*connections_[i], &lengths, sizeof(lengths), deadline_);
    taken_bytes_ += std::size_t{lengths.key} + lengths.value + sizeof(lengths);
    if (lengths.key > kLongest || lengths.value > kLongest || taken_bytes_ > kMostBytes) {
      throw std::system_error(EPROTO, std::generic_category(), "the addresses of the other hosts");
    }
    std::string key(lengths.key, '\0');
    std::vector<std::uint8_t> value(lengths.value);
    receive_all(*connections_[i], key.data(), key.size(), deadline_);
    receive_all(*connections_[i], value.data(), value.size(), deadline_);
    if (key.empty()) {
      finished_[i] = true;
    } else {
      values_[key] = std::move(value);
    }
  }
}

bool ControlStore::check(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (!values_.contains(key)) return false;
  }
  return true;
}

void ControlStore::wait(const std::vector<std::string>& keys) {
  while (!check(keys)) take_some();
}

void ControlStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) {
  wait(keys);
}

std::vector<std::uint8_t> ControlStore::get(const std::string& key) {
  wait({key});
  return values_.at(key);
}

c10::intrusive_ptr<c10d::Store> ControlStore::clone() {
  throw Error("this store has no clones");
}

std::int64_t ControlStore::add(const std::string& /*key*/, std::int64_t /*value*/) {
  throw Error("this store does not count");
}

bool ControlStore::deleteKey(const std::string& key) {
  return values_.erase(key) > 0;
}

}  // namespace tessera::comm
