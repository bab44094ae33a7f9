#pragma once
// Builds a pickle (protocol 2) from the outside in: what torch.load, and only data, needs.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

class PickleWriter {
 public:
  PickleWriter();

  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void global(std::string_view module, std::string_view name);
  void integers(const std::vector<std::int64_t>& values);  // a tuple

  void begin_tuple() { out_ += '('; }
  void end_tuple() { out_ += 't'; }
  void begin_list() { out_ += "]("; }
  void end_list() { out_ += 'e'; }
  /// Between: key, value, key, value ...
  void begin_dict() { out_ += "}("; }
  /// Entries into a dict that an earlier operation made.
  void begin_items() { out_ += "("; }
  void end_dict() { out_ += "u"; }
  /// Calls what lies below the arguments (a tuple).
  void reduce() { out_ += 'R'; }
  /// Object of a class whose __init__ is not called; its attributes (a dict) follow, then set_state().
  void create(std::string_view module, std::string_view name);
  void set_state() { out_ += 'b'; }

  void dtype(at::ScalarType dtype);
  void size(const std::vector<std::int64_t>& sizes);  // torch.Size
  /// A contiguous tensor over the whole storage data/<key> of the archive that this pickle belongs to.
  void tensor(std::string_view key, at::ScalarType dtype, const std::vector<std::int64_t>& shape);

  /// The finished pickle.
  std::string take();

 private:
  std::string out_;
};

}  // namespace tessera::io
