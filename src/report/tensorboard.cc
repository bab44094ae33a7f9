#include "report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/crc32c.h"
#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

template <class T>
std::string raw(T value) {  // little-endian, as every machine this runs on
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The wire format of protocol buffers: a key (field number and type), then the value.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(std::uint64_t n) {
  std::string out;
  for (; n >= 0x80; n >>= 7) out += static_cast<char>(n | 0x80);
  return out + static_cast<char>(n);
}
std::string key(int field, Wire wire) {
  return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}
std::string integer(int field, std::int64_t value) {
  return key(field, kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string bytes(int field, const std::string& value) {
  return key(field, kBytes) + varint(value.size()) + value;
}

/// Event: wall_time 1, step 2, then file_version 3 or summary 5.
std::string event(double wall_time, std::int64_t step, const std::string& what) {
  std::string out = key(1, kFixed64) + raw(wall_time);
  if (step != 0) out += integer(2, step);
  return out + what;
}

/// Summary: value 1 (Summary.Value: tag 1, simple_value 2, tensor 8, metadata 9).
std::string summary(const std::string& value) {
  return bytes(5, bytes(1, value));
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && *name ? name : "localhost";
}

std::string file_name() {
  static std::atomic<int> writers{0};
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<std::int64_t>(now()), host(), getpid(),
                     writers++);
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view data) {
  const std::uint32_t crc = crc32c(data.data(), data.size());
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

std::string tf_record(std::string_view payload) {
  const auto length = raw(static_cast<std::uint64_t>(payload.size()));
  return length + raw(masked_crc32c(length)) + std::string(payload) + raw(masked_crc32c(payload));
}

std::string version_event(double wall_time) {
  return event(wall_time, 0, bytes(3, "brain.Event:2"));
}

std::string scalar_event(const std::string& tag, double value, std::int64_t step, double wall_time) {
  return event(wall_time, step, summary(bytes(1, tag) + key(2, kFixed32) + raw(static_cast<float>(value))));
}

std::string start_event(std::int64_t step, double wall_time) {
  return event(wall_time, step, bytes(7, integer(1, 1)));  // SessionLog: status 1 (START is 1)
}

std::string text_event(const std::string& tag, const std::string& text, std::int64_t step, double wall_time) {
  // TensorProto: dtype 1 (DT_STRING is 7), tensor_shape 2 (dim 2 (size 1)), string_val 8.
  const auto tensor = integer(1, 7) + bytes(2, bytes(2, integer(1, 1))) + bytes(8, text);
  const auto metadata = bytes(1, bytes(1, "text"));  // SummaryMetadata: plugin_data 1 (plugin_name 1)
  return event(wall_time, step, summary(bytes(1, tag) + bytes(8, tensor) + bytes(9, metadata)));
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder) {
  ensure_writable_folder(folder);
  path_ = (std::filesystem::path(folder) / file_name()).string();
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) throw CheckpointError("cannot create '" + path_ + "': " + std::strerror(errno), path_);
  name_ = HeldName(path_);
  write(version_event(now()));
}

void TensorBoardWriter::scalar(const std::string& tag, double value, std::int64_t step) {
  write(scalar_event(tag, value, step, now()));
}

void TensorBoardWriter::purge_from(std::int64_t step) {
  write(start_event(step, now()));
}

void TensorBoardWriter::text(const std::string& tag, const std::string& text, std::int64_t step) {
  write(text_event(tag, text, step, now()));
}

void TensorBoardWriter::write(const std::string& message) {
  if (name_) name_->check();
  const auto record = tf_record(message);
  out_.write(record.data(), static_cast<std::streamsize>(record.size()));
  out_.flush();
  if (!out_) throw CheckpointError("writing '" + path_ + "' failed: is the disk full?", path_);
}

}  // namespace tessera::report
