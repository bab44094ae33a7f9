#pragma once
#include <string>

#include "base/descriptor.h"

namespace tessera::data {

/// Holds others of this machine off while one writes `path`, a file of the cache (cache_key.h), whose folder it makes;
/// released at the end of its life. CheckpointError when the folder cannot be written.
class CacheLock {
 public:
  explicit CacheLock(const std::string& path);

 private:
  Descriptor descriptor_;
};

}  // namespace tessera::data
