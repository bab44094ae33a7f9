#pragma once
// The methods of strings, lists, dictionaries and numbers that a template may call.
#include <string_view>
#include <vector>

#include "chat/jinja/runtime.h"

namespace tessera::chat {

using Method = Value (*)(Runtime&, const Value& self, Arguments);

struct MethodEntry {
  std::string_view name;
  Method method;
};

/// Null where the type has no such method.
Method find_text_method(std::string_view name);
Method find_container_method(const Value& object, std::string_view name);
/// append, pop, update ...: what jinja2's immutable sandbox refuses.
bool is_mutating(const Value& object, std::string_view name);

/// All of them, for one type.
std::vector<MethodEntry> text_methods();
std::vector<MethodEntry> container_methods(const Value& object);
// The parts of the strings' table: text_methods.cc, text_queries.cc.
const std::vector<MethodEntry>& text_changes();
const std::vector<MethodEntry>& text_queries();

/// str.split without a separator, and the pieces that other functions need.
std::vector<Value> split_space(const std::u32string& text, std::int64_t limit);
/// Takes the next line, without its end, off `rest`; `whole` is the line with its end. False when `rest` is empty.
bool take_line(std::string_view& rest, std::string_view& line, std::string_view& whole);
/// Removes the characters of `set` (null: white space) from the ends that are named.
std::string strip_text(std::string_view text, const Value& set, bool left, bool right);
std::string center_text(std::string_view text, std::int64_t width, char32_t fill = ' ');
std::string replace_text(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit);
bool is_cased_as(std::string_view text, bool (*wanted)(char32_t), bool (*unwanted)(char32_t));

}  // namespace tessera::chat
