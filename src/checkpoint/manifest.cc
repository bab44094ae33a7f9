#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/bounded_json.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "base/plain_reason.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using ManifestJson = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera-checkpoint";
constexpr const char* kOwnChecksum = "manifest_crc32c";
constexpr std::int64_t kMaxManifestBytes = 64 << 20;

/// The checksum of the document without the member that holds it.
std::string own_checksum(ManifestJson document) {
  document.erase(kOwnChecksum);
  const std::string text = json_text(document);
  return crc32c_text(crc32c(text.data(), text.size()));
}

std::uint32_t parse_checksum(const std::string& text) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value, 16);
  if (text.size() != 8 || code != std::errc() || stop != end) throw std::runtime_error("'" + text + "' is no checksum");
  return value;
}

/// Only what is written as a whole number: others may not fit, and converting those is undefined.
template <class T>
T whole_number(const ManifestJson& json, const char* key) {
  const auto& value = json.at(key);
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<T>::max()))
    throw std::runtime_error(fmt::format("'{}' is no whole number in range, but {}", key, json_text(value)));
  return value.get<T>();
}

FileRecord parse_record(const ManifestJson& json) {
  FileRecord out{json.at("name").get<std::string>(), whole_number<std::int64_t>(json, "bytes"),
                 parse_checksum(json.at("crc32c").get<std::string>()), 0};
  const fs::path path(out.name);
  const bool outside = path.empty() || path.is_absolute() ||
                       std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (outside) throw std::runtime_error("'" + out.name + "' is not a file inside the folder");
  return out;
}

/// Files whose parts are known, whole.
class KnownFiles {
 public:
  explicit KnownFiles(std::vector<FileRecord> parts) {
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return std::tie(a.name, a.offset) < std::tie(b.name, b.offset); });
    for (const auto& part : parts) {
      FileRecord& file = files_[part.name];
      file.crc32c = crc32c_combine(file.crc32c, part.crc32c, static_cast<std::uint64_t>(part.bytes));
      file.bytes = part.offset == file.bytes ? file.bytes + part.bytes : kHasGaps;
    }
  }
  /// None where the parts do not make a file of this size.
  std::optional<std::uint32_t> checksum(const std::string& path, std::int64_t bytes) const {
    const auto found = files_.find(path);
    return found != files_.end() && found->second.bytes == bytes ? std::optional(found->second.crc32c) : std::nullopt;
  }

 private:
  static constexpr std::int64_t kHasGaps = -1;  // where no part begins
  std::map<std::string, FileRecord> files_;
};

/// What was written must be there: who removes files of a folder that is being written would else get a manifest of the
/// rest, and a checkpoint that says it is whole.
void check_all_there(const std::vector<FileRecord>& known) {
  for (const auto& part : known) {
    std::error_code code;
    const auto size = fs::file_size(part.name, code);
    if (code || static_cast<std::int64_t>(size) < part.offset + part.bytes)
      throw CheckpointError(fmt::format("'{}' was written and is {}: something else changes this folder", part.name,
                                        code ? "gone" : "shorter now"),
                            part.name);
  }
}

std::vector<FileRecord> records_of(const std::string& folder, const std::vector<FileRecord>& known) {
  const KnownFiles whole(known);
  std::vector<FileRecord> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = entry.path().string(), name = fs::relative(entry.path(), folder).generic_string();
    if (name == kManifestName) continue;
    FileRecord record{name, static_cast<std::int64_t>(entry.file_size()), 0, 0};
    const auto crc = whole.checksum(path, record.bytes);
    record.crc32c = crc ? *crc : crc32c_of_file(path, &record.bytes);
    files.push_back(std::move(record));
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

std::string difference(const FileRecord& record, std::uint32_t found) {
  if (found == record.crc32c) return {};
  return fmt::format("'{}' has the checksum {}, {} was written (its bytes have changed)", record.name,
                     crc32c_text(found), crc32c_text(record.crc32c));
}

std::string damage_of(const std::string& folder, const FileRecord& record, Depth depth) {
  const std::string path = folder + "/" + record.name;
  std::error_code code;
  const auto size = fs::file_size(path, code);
  if (code) return fmt::format("'{}' is missing or cannot be read ({})", record.name, code.message());
  if (static_cast<std::int64_t>(size) != record.bytes)
    return fmt::format("'{}' has {} bytes, {} were written", record.name, size, record.bytes);
  if (depth == Depth::kSizes) return {};
  try {
    return difference(record, crc32c_of_file(path));
  } catch (const std::exception& e) {
    return plain_reason(e);
  }
}

}  // namespace

void write_manifest(const std::string& folder, std::int64_t step, int world_size,
                    const std::vector<FileRecord>& known) {
  check_all_there(known);
  ManifestJson document = {
      {"format", kFormat}, {"version", kManifestVersion}, {"created_by", "tessera " TESSERA_VERSION},
      {"step", step},      {"world_size", world_size},    {"files", ManifestJson::array()}};
  for (const auto& r : records_of(folder, known))
    document["files"].push_back({{"name", r.name}, {"bytes", r.bytes}, {"crc32c", crc32c_text(r.crc32c)}});
  document[kOwnChecksum] = own_checksum(document);
  write_file_atomically(folder + "/" + kManifestName, json_text(document, 2) + "\n");
}

Manifest parse_manifest(const std::string& text, const std::string& file) {
  const auto fail = [&](const std::string& what) {
    throw CheckpointError(fmt::format("'{}' {}; choose another checkpoint", file, what), file);
  };
  Manifest out;
  try {
    const ManifestJson document = ManifestJson::parse(bounded_json(text, file), nullptr, false);
    if (document.is_discarded() || !document.is_object()) fail("is damaged: it is not a JSON object");
    if (document.value("format", "") != kFormat) fail("is not a manifest of tessera");
    out.version = whole_number<int>(document, "version");
    if (out.version < 1 || out.version > kManifestVersion)
      fail(fmt::format("has format version {}, this program reads versions 1 to {}; use the program that wrote it",
                       out.version, kManifestVersion));
    if (document.value(kOwnChecksum, "") != own_checksum(document))
      fail("is damaged: its own checksum does not fit its content");
    out.created_by = document.at("created_by").get<std::string>();
    out.step = whole_number<std::int64_t>(document, "step");
    out.world_size = whole_number<int>(document, "world_size");
    for (const auto& entry : document.at("files")) out.files.push_back(parse_record(entry));
  } catch (const CheckpointError&) {
    throw;
  } catch (const std::exception& e) {
    fail(fmt::format("is damaged: {}", plain_reason(e)));
  }
  return out;
}

Manifest read_manifest(const std::string& folder) {
  const std::string file = folder + "/" + kManifestName;
  if (!is_there(folder)) throw CheckpointError(fmt::format("'{}' does not exist", folder), folder);
  if (!is_there(file))
    throw CheckpointError(
        fmt::format("'{}' has no {}: it was not written by tessera, or not to its end", folder, kManifestName), folder);
  return parse_manifest(read_file(file, kMaxManifestBytes), file);
}

std::string find_damage(const std::string& folder, Depth depth) {
  try {
    for (const auto& record : read_manifest(folder).files) {
      const std::string damage = damage_of(folder, record, depth);
      if (!damage.empty()) return damage;
    }
    return {};
  } catch (const std::exception& e) {
    return plain_reason(e);
  }
}

std::string find_damage(const Manifest& manifest, const std::vector<FileRecord>& found) {
  const KnownFiles whole(found);
  for (const auto& record : manifest.files) {
    const auto crc = record.bytes == 0 ? std::optional<std::uint32_t>(0) : whole.checksum(record.name, record.bytes);
    if (!crc) return fmt::format("'{}' was not read as a whole", record.name);
    if (auto damage = difference(record, *crc); !damage.empty()) return damage;
  }
  return {};
}

}  // namespace tessera::checkpoint
