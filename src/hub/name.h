#pragma once
// Names of repositories on the Hub, and which words of a server may become paths here.
#include <optional>
#include <string>
#include <string_view>

namespace tessera::hub {

enum class Kind { kModel, kDataset };

struct RepositoryName {
  Kind kind = Kind::kModel;
  std::string id;                 // "org/name", or "name" of the oldest ones
  std::string revision = "main";  // a branch, a tag or a commit
};

/// "org/name" or "org/name@revision", by huggingface_hub's rules; nothing for what cannot be such a name.
std::optional<RepositoryName> parse_name(Kind kind, std::string_view text);

/// The same of what somebody named and is no path here. DataError: it cannot be such a name, or ends like a
/// file (with "@main" it is a name all the same).
RepositoryName name_of_missing(Kind kind, const std::string& path);

/// "org/name@revision", without "@main".
std::string text_of(const RepositoryName& name);

/// 40 hexadecimal digits.
bool is_commit(std::string_view text);

/// A relative path of names: none is empty, "." or "..", holds a control character or a backslash, or is longer than a
/// file system takes.
bool is_safe_path(std::string_view path);

/// An etag that may be the name of a file: letters, digits and "-_+=.", not with a dot in front.
bool is_safe_etag(std::string_view etag);

}  // namespace tessera::hub
