#pragma once
#include <string>
#include <string_view>

namespace tessera::chat {

/// & < > ' " as HTML entities (markupsafe.escape).
std::string escape_html(std::string_view text);
/// Entities and tags removed, white space collapsed (markupsafe's striptags).
std::string strip_tags(std::string_view text);

}  // namespace tessera::chat
