#pragma once
// The MPI of whoever started this process, opened at run time: nothing of MPI is needed to build, or where it is not
// used. There are two binary interfaces: MPICH's (which Intel MPI, Cray MPICH and MVAPICH share), where handles are
// numbers, and Open MPI's, where they are addresses.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::comm {

/// Messages of bytes among all processes that were started together. One thread makes all calls, but for version() and
/// is_in_use(), and sizes once it has started. std::runtime_error says what MPI says.
class MpiLibrary {
 public:
  /// A message on its way.
  using Request = std::intptr_t;

  virtual ~MpiLibrary() = default;
  /// Its first line.
  virtual std::string version() const = 0;
  /// Whether something else in this process uses it.
  virtual bool is_in_use() const = 0;
  /// Collective among all processes, as are all_gather() and finish().
  virtual void start() = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int largest_tag() const = 0;
  virtual void all_gather(const void* own, void* all, int bytes) = 0;
  virtual Request send(int rank, const void* data, int bytes, int tag) = 0;
  virtual Request receive(int rank, void* data, int bytes, int tag) = 0;
  /// Whether it is done; then it is no more. Moves all messages on.
  virtual bool test(Request& request) = 0;
  virtual void progress() = 0;
  virtual void finish() = 0;
};

/// The first of these files that can be loaded. ConfigError says of each why it cannot.
std::unique_ptr<MpiLibrary> open_mpi_library(const std::vector<std::string>& names);

}  // namespace tessera::comm
