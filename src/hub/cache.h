#pragma once
// huggingface_hub's cache on this machine, which Python and this program share:
//   models--org--name/blobs/<etag>, snapshots/<commit>/<file> -> ../../blobs/<etag>, refs/<revision> (a commit),
//   .no_exist/<commit>/<file>, and .locks/models--org--name/<etag>.lock beside it.
#include <optional>
#include <string>
#include <vector>

#include "hub/name.h"

namespace tessera::hub {

/// Held until it is destroyed or the process ends. In a cache that may not be written there is nothing to hold.
class FileLock {
 public:
  /// Waits for who holds it, which is said: "... downloads <waiting_for>".
  FileLock(const std::string& path, const std::string& waiting_for);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// The part of the cache that is one repository's. Nothing is created before it is written; CheckpointError names what
/// cannot be.
class Cache {
 public:
  Cache(const std::string& root, const RepositoryName& name);

  /// Of the revision, where it was here before.
  std::optional<std::string> commit() const;

  std::string snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }
  /// Paths of the snapshot's files, sorted.
  std::vector<std::string> files(const std::string& commit) const;
  /// Whether the file itself is there, not only a link to it.
  bool has(const std::string& commit, const std::string& file) const;
  /// The revision is this commit, which has no file of these names; so nobody needs to ask again.
  void note(const std::string& commit, const std::vector<std::string>& absent) const;
  bool is_noted(const std::string& commit, const std::vector<std::string>& absent) const;

  std::string blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
  /// The blob becomes the snapshot's file: by a link, or moved where the file system has no links (exFAT, SMB).
  void link(const std::string& commit, const std::string& file, const std::string& etag) const;

  std::string blob_lock(const std::string& etag) const { return locks_ + "/" + etag + ".lock"; }
  /// One process of a machine fills a repository at a time.
  std::string repository_lock() const { return locks_ + "/tessera.lock"; }

 private:
  std::string ref() const { return folder_ + "/refs/" + revision_; }
  std::string no_exist(const std::string& commit, const std::string& file) const {
    return folder_ + "/.no_exist/" + commit + "/" + file;
  }

  std::string revision_, folder_, locks_;
};

/// Makes the folder that `file` lies in. CheckpointError.
void make_folder_of(const std::string& file);

}  // namespace tessera::hub
