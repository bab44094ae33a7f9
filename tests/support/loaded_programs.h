#pragma once
// Starts of `tessera` and `tessera-worker` that load nothing. A test program that links loaded_programs.cc holds their
// code, and libtorch, which takes 0.2 s of a core to load; so exec of one of them, in the test program or in a copy
// that fork has made of it, does to the process what exec does to it (descriptors, signals, name, environment) and
// calls main(). All else is the programs' own: the launcher, its fork server, its ranks, their signals and exit codes.
// They are loaded after all where there is a FromDisk, where the copied process had other threads, and where a variable
// that libraries or the programs look at once has another value.

namespace tessera::test {

/// While one lives, programs are loaded from their files: for tests of what a process holds and of how it starts.
class FromDisk {
 public:
  FromDisk() { ++count_; }
  ~FromDisk() { --count_; }
  FromDisk(const FromDisk&) = delete;
  FromDisk& operator=(const FromDisk&) = delete;
  static bool is_wanted() { return count_ > 0; }

 private:
  static inline int count_ = 0;
};

}  // namespace tessera::test
