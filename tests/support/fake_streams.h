#pragma once
// Streams of the fake devices, but for the one that computes, which is done with an operation when the call returns.
// What is queued on another stream runs later, on a thread of its own, after pauses that a seed chooses. Memory is
// poisoned when it is given out and when it is freed (one that was taken on a stream when that stream gets there), and
// so is what a queued copy will write, on either side; so whoever leaves out a wait reads numbers that are none. A copy
// that does not wait for the computation that used its memory, and computation that does not wait for the copy, are
// faults whatever the pauses were.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tessera::test {

/// While it lives, fake devices have such streams; no tensor may outlive it.
class FakeStreams {
 public:
  explicit FakeStreams(std::uint32_t seed);
  ~FakeStreams();
  FakeStreams(const FakeStreams&) = delete;
  FakeStreams& operator=(const FakeStreams&) = delete;
  /// The first since it began; empty: none.
  static std::string fault();
  /// Copies that were queued and not waited for by their caller.
  static std::int64_t copies();
};

/// A stream, and a new one for a device's pool; ids begin at 1.
class FakeStream;
bool has_fake_streams();
std::int64_t new_fake_stream();
FakeStream* fake_stream(std::int64_t id);

/// Runs it when all before it has run. stream: null runs it at once.
void run_on(FakeStream* stream, std::function<void()> run);
/// What becomes true once: when a stream gets there, or at once for the one that computes.
class FakeMark;
std::shared_ptr<FakeMark> mark(FakeStream* stream, int device);
bool reached(const FakeMark& mark);
int device_of(const FakeMark& mark);
/// By the device when the mark was made on the stream that computes; -1: on another one.
std::int64_t computed_at(const FakeMark& mark);
/// The stream goes on when the mark is reached; null: the caller waits, and computes behind it.
void wait_for(FakeStream* stream, const std::shared_ptr<FakeMark>& mark);

/// The stream that computes on this device has done something more; and how much that is.
void count_computation(int device);
std::int64_t computed_by(int device);
/// How much of it this stream was told to wait for; -1: none.
std::int64_t waited_for(const FakeStream& stream);
/// What it was told so far, and how much of that the stream that computes has waited for.
std::int64_t told(const FakeStream& stream);
std::int64_t awaited(const FakeStream& stream);
/// The copy that this stream was told last reads the host's memory here.
void note_read(FakeStream* stream, int device, const void* from);
/// Such copies that the host has not waited for: of a device; or whether there is one from memory like this.
std::int64_t reads_of(int device);
bool any_read(const std::function<bool(const void* from)>& like_this);
/// The host has seen that the mark is reached; or that the streams that compute have come to their ends.
void host_waited(const FakeMark& mark);
void host_waited_for_computation();
void note_fault(const std::string& what);
void count_copy();
/// InternalError unless this stream was told to wait for all that the device had computed: it may read what is not
/// there.
void check_waits_for_computation(FakeStream* stream, int device);

}  // namespace tessera::test
