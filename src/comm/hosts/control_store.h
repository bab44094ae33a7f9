#pragma once
// A store in the form that libtorch's process groups ask for, among ranks that are connected already: what one sets
// goes to all others over their connections, and is kept there.
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/tcp.h"

namespace tessera::comm {

class ControlStore : public c10d::Store {
 public:
  /// Connections to the others (null: none). Until finish() they carry nothing else. std::system_error where one
  /// breaks, at the deadline, or where the others say more than addresses take.
  ControlStore(std::vector<const Descriptor*> connections, Deadline deadline)
      : connections_(std::move(connections)), deadline_(deadline) {}

  /// Until the others have called it, too: nothing more comes.
  void finish();

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  bool check(const std::vector<std::string>& keys) override;
  c10::intrusive_ptr<Store> clone() override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  std::int64_t getNumKeys() override { return static_cast<std::int64_t>(values_.size()); }

 private:
  void tell_all(const std::string& key, const std::vector<std::uint8_t>& value);
  void take_some();

  std::vector<const Descriptor*> connections_;
  std::vector<bool> finished_ = std::vector<bool>(connections_.size(), false);
  Deadline deadline_;
  std::size_t taken_bytes_ = 0;  // from the others
  std::map<std::string, std::vector<std::uint8_t>> values_;
};

}  // namespace tessera::comm
