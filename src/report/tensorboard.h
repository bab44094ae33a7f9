#pragma once
// TensorBoard event files: TFRecord frames (masked CRC-32C) of tensorflow.Event protocol buffers, written by hand.
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/held_name.h"

namespace tessera::report {

class TensorBoardWriter {
 public:
  /// Creates `folder` if needed and `events.out.tfevents.<time>.<host>.<pid>.<n>` in it (n counts this process's
  /// writers). CheckpointError when that fails.
  explicit TensorBoardWriter(const std::string& folder);
  const std::string& path() const { return path_; }
  /// For who watches over the file from now on, so that all ranks learn of its loss: writing no longer looks.
  HeldName hand_over_name() { return std::exchange(name_, std::nullopt).value(); }

  /// A point of the curve `tag`. Flushed as it is written, so that a running job can be watched.
  void scalar(const std::string& tag, double value, std::int64_t step);
  /// TensorBoard leaves out what older files of the folder have from this step on: a run that goes on writes it again
  /// (purge_step of torch's SummaryWriter).
  void purge_from(std::int64_t step);
  /// Markdown under the "Text" tab.
  void text(const std::string& tag, const std::string& text, std::int64_t step);

 private:
  void write(const std::string& event);
  std::string path_;
  std::ofstream out_;
  std::optional<HeldName> name_;
};

/// CRC-32C (Castagnoli), as TFRecord masks it: rotated right by 15 bits plus a constant.
std::uint32_t masked_crc32c(std::string_view bytes);

/// The bytes of one frame.
std::string tf_record(std::string_view payload);

/// Serialised Event messages. `wall_time`: seconds since 1970.
std::string version_event(double wall_time);
std::string scalar_event(const std::string& tag, double value, std::int64_t step, double wall_time);
std::string start_event(std::int64_t step, double wall_time);
std::string text_event(const std::string& tag, const std::string& text, std::int64_t step, double wall_time);

}  // namespace tessera::report
