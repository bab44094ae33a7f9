#pragma once
#include <string>

namespace tessera::data {

/// Holds others of this machine off while one writes `path`, a file of the cache (cache_key.h), whose folder it makes;
/// released at the end of its life. CheckpointError when the folder cannot be written.
class CacheLock {
 public:
  explicit CacheLock(const std::string& path);
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace tessera::data
