#pragma once
// The methods of strings, lists, dictionaries and numbers that a template may call.
#include <string_view>

#include "chat/runtime.h"

namespace tessera::chat {

using Method = Value (*)(Runtime&, const Value& self, Arguments);

/// Null where the type has no such method.
Method find_text_method(std::string_view name);
Method find_container_method(const Value& object, std::string_view name);
/// append, pop, update ...: what jinja2's immutable sandbox refuses.
bool is_mutating(const Value& object, std::string_view name);

/// str.split without a separator, and the pieces that other functions need.
std::vector<Value> split_space(const std::u32string& text, std::int64_t limit);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends = false);
/// Removes the characters of `set` (null: white space) from the ends that are named.
std::string strip_text(std::string_view text, const Value& set, bool left, bool right);
std::string center_text(std::string_view text, std::int64_t width, char32_t fill = ' ');
std::string replace_text(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit);
bool is_cased_as(std::string_view text, bool (*wanted)(char32_t), bool (*unwanted)(char32_t));

}  // namespace tessera::chat
