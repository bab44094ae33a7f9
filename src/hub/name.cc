#include "hub/name.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

constexpr std::size_t kLongestName = 255, kLongestPath = 1024;
constexpr const char* kFileEndings[] = {".jsonl", ".json", ".csv",         ".tsv", ".txt", ".parquet",
                                        ".arrow", ".gguf", ".safetensors", ".bin", ".pt"};

bool is_digit_or_letter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_word(char c) {
  return is_digit_or_letter(c) || c == '_';
}

/// Begins and ends with a letter, a digit or "_"; between them there may be "-" and ".".
bool is_part_of_id(std::string_view part) {
  return !part.empty() && part.size() <= 96 && is_word(part.front()) && is_word(part.back()) &&
         std::all_of(part.begin(), part.end(), [](char c) { return is_word(c) || c == '-' || c == '.'; });
}

bool is_id(std::string_view id) {
  if (id.find("--") != std::string_view::npos || id.find("..") != std::string_view::npos || id.ends_with(".git"))
    return false;
  const auto slash = id.find('/');
  if (slash == std::string_view::npos) return is_part_of_id(id);
  return is_part_of_id(id.substr(0, slash)) && is_part_of_id(id.substr(slash + 1));
}

}  // namespace

std::optional<RepositoryName> parse_name(Kind kind, std::string_view text) {
  RepositoryName out{.kind = kind, .id = {}};
  const auto at = text.find('@');
  if (at != std::string_view::npos) {
    out.revision = text.substr(at + 1);
    if (!is_safe_path(out.revision)) return std::nullopt;
  }
  out.id = text.substr(0, at);
  return is_id(out.id) ? std::optional(out) : std::nullopt;
}

RepositoryName name_of_missing(Kind kind, const std::string& path) {
  const auto name = parse_name(kind, path);
  if (!name)
    throw DataError("'" + path +
                        "' is neither a file or folder here nor a name on the Hub, such as org/name or "
                        "org/name@revision" +
                        (path.starts_with("~/") ? ". The shell did not expand '~': write the whole path" : ""),
                    path);
  if (path.find('@') != std::string::npos) return *name;
  for (const char* ending : kFileEndings)
    if (path.ends_with(ending))
      throw DataError(
          "'" + path + "' does not exist. The Hub is not asked for what ends like a file; '" + path + "@main' asks it",
          path);
  return *name;
}

std::string text_of(const RepositoryName& name) {
  return name.revision == "main" ? name.id : name.id + "@" + name.revision;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_safe_path(std::string_view path) {
  if (path.size() > kLongestPath) return false;
  for (std::size_t begin = 0;;) {
    const auto end = std::min(path.find('/', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kLongestName) return false;
    for (const char c : part)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '\\') return false;
    if (end == path.size()) return true;
    begin = end + 1;
  }
}

bool is_safe_etag(std::string_view etag) {
  constexpr std::string_view kOthers = "-_+=.";
  return !etag.empty() && etag.size() <= 128 && etag.front() != '.' &&
         std::all_of(etag.begin(), etag.end(),
                     [&](char c) { return is_digit_or_letter(c) || kOthers.find(c) != std::string_view::npos; });
}

}  // namespace tessera::hub
