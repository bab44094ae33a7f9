#include "comm/hosts/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <stdexcept>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr int kFunneled = 1;  // the thread that starts it is the one that calls it

// Note [MPI's binary interfaces]
// Neither may change: programs that were linked with one version must run with the next. MPICH's is written down
// (mpich.org/abi), Open MPI's constants are the addresses of variables that every program refers to.
struct MpichInterface {
  using Handle = int;
  static Handle world(void*) { return 0x44000000; }
  static Handle byte(void*) { return 0x4c00010d; }
  static Handle errors_return(void*) { return 0x54000001; }
  static void* no_status() { return reinterpret_cast<void*>(1); }
  static constexpr int kTagLimit = 0x64400001, kAnySource = -2, kAnyTag = -1;
};
struct OpenMpiInterface {
  using Handle = void*;
  static Handle world(void* library) { return ::dlsym(library, "ompi_mpi_comm_world"); }
  static Handle byte(void* library) { return ::dlsym(library, "ompi_mpi_byte"); }
  static Handle errors_return(void* library) { return ::dlsym(library, "ompi_mpi_errors_return"); }
  static void* no_status() { return nullptr; }
  static constexpr int kTagLimit = 0, kAnySource = -1, kAnyTag = -1;
};

std::string version_of(void* library) {
  using GetVersion = int (*)(char*, int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(library, "MPI_Get_library_version"));
  std::array<char, 8192> text{};  // the longest
  int length = 0;
  if (get == nullptr || get(text.data(), &length) != 0) return "";
  const std::string all(text.data());
  return all.substr(0, all.find('\n'));
}

template <class Interface>
class MpiOf : public MpiLibrary {
 public:
  explicit MpiOf(void* library) : library_(library) {
    find("MPI_Initialized", initialized_);
    find("MPI_Init_thread", init_thread_);
    find("MPI_Comm_dup", comm_dup_);
    find("MPI_Comm_set_errhandler", comm_set_errhandler_);
    find("MPI_Comm_rank", comm_rank_);
    find("MPI_Comm_size", comm_size_);
    find("MPI_Comm_get_attr", comm_get_attr_);
    find("MPI_Allgather", allgather_);
    find("MPI_Isend", isend_);
    find("MPI_Irecv", irecv_);
    find("MPI_Test", test_);
    find("MPI_Iprobe", iprobe_);
    find("MPI_Error_string", error_string_);
    find("MPI_Finalize", finalize_);
  }

  std::string version() const override { return version_of(library_); }
  bool is_in_use() const override {
    int flag = 0;
    initialized_(&flag);
    return flag != 0;
  }
  void start() override {
    int threads = 0;
    check(init_thread_(nullptr, nullptr, kFunneled, &threads));
    if (threads < kFunneled) throw std::runtime_error("it was built without threads (MPI_THREAD_FUNNELED)");
    check(comm_set_errhandler_(Interface::world(library_), Interface::errors_return(library_)));
    check(comm_dup_(Interface::world(library_), &all_));
    check(comm_set_errhandler_(all_, Interface::errors_return(library_)));
    check(comm_rank_(all_, &rank_));
    check(comm_size_(all_, &size_));
    int* limit = nullptr;
    int is_set = 0;
    check(comm_get_attr_(all_, Interface::kTagLimit, &limit, &is_set));
    if (is_set != 0) largest_tag_ = *limit;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int largest_tag() const override { return largest_tag_; }
  void all_gather(const void* own, void* all, int bytes) override {
    check(allgather_(own, bytes, byte_, all, bytes, byte_, all_));
  }
  Request send(int rank, const void* data, int bytes, int tag) override {
    Handle request{};
    check(isend_(data, bytes, byte_, rank, tag, all_, &request));
    return (Request)request;  // a number or an address
  }
  Request receive(int rank, void* data, int bytes, int tag) override {
    Handle request{};
    check(irecv_(data, bytes, byte_, rank, tag, all_, &request));
    return (Request)request;
  }
  bool test(Request& request) override {
    auto handle = (Handle)request;
    int done = 0;
    check(test_(&handle, &done, Interface::no_status()));
    request = (Request)handle;
    return done != 0;
  }
  void progress() override {
    int flag = 0;
    check(iprobe_(Interface::kAnySource, Interface::kAnyTag, all_, &flag, Interface::no_status()));
  }
  void finish() override { check(finalize_()); }

 private:
  using Handle = typename Interface::Handle;

  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr) throw ConfigError(fmt::format("{} lacks {}", version(), name), "TESSERA_TRANSPORT");
  }
  void check(int error) const {
    if (error == 0) return;
    std::array<char, 512> text{};  // the longest
    int length = 0;
    error_string_(error, text.data(), &length);
    throw std::runtime_error(text.data());
  }

  void* library_;  // stays loaded
  int (*initialized_)(int*);
  int (*init_thread_)(int*, char***, int, int*);
  int (*comm_dup_)(Handle, Handle*);
  int (*comm_set_errhandler_)(Handle, Handle);
  int (*comm_rank_)(Handle, int*);
  int (*comm_size_)(Handle, int*);
  int (*comm_get_attr_)(Handle, int, void*, int*);
  int (*allgather_)(const void*, int, Handle, void*, int, Handle, Handle);
  int (*isend_)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*irecv_)(void*, int, Handle, int, int, Handle, Handle*);
  int (*test_)(Handle*, int*, void*);
  int (*iprobe_)(int, int, Handle, int*, void*);
  int (*error_string_)(int, char*, int*);
  int (*finalize_)();

  Handle byte_ = Interface::byte(library_), all_{};
  int rank_ = 0, size_ = 1, largest_tag_ = 32767;  // what the standard promises
};

}  // namespace

std::unique_ptr<MpiLibrary> open_mpi_library(const std::vector<std::string>& names) {
  std::string reasons;
  for (const std::string& name : names) {
    // Its own plugins look for its symbols among everybody's.
    void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", ::dlerror());
      continue;
    }
    if (::dlsym(library, "ompi_mpi_comm_world") != nullptr) return std::make_unique<MpiOf<OpenMpiInterface>>(library);
    const std::string version = version_of(library);
    for (const char* family : {"MPICH", "Intel(R) MPI", "CRAY MPICH", "MVAPICH"}) {
      if (version.starts_with(family)) return std::make_unique<MpiOf<MpichInterface>>(library);
    }
    reasons += fmt::format("{}{} is '{}', of which it is not known whether it has MPICH's binary interface",
                           reasons.empty() ? "" : "; ", name, version);
  }
  throw ConfigError(reasons, "TESSERA_TRANSPORT");
}

}  // namespace tessera::comm
