#pragma once
// One file of a repository into the cache.
#include <cstdint>
#include <functional>
#include <string>

#include "hub/cache.h"
#include "hub/client.h"

namespace tessera::hub {

struct Place {
  const RepositoryName& name;
  const Cache& cache;
  std::string commit;
};

/// Bytes that have come, or (negative) that count no more. What it throws ends the download.
using Count = std::function<void(std::int64_t)>;

/// Afterwards the file is in the snapshot, whole and with the checksum that its etag is. The bytes go to
/// blobs/<etag>.incomplete, where a download that was cut goes on; only whole files get their names. DataError for
/// other bytes than were announced (what came is removed), CheckpointError where they cannot be written (what came
/// stays).
void download_file(Client& client, const Place& place, const RemoteFile& file, const Count& count);

}  // namespace tessera::hub
