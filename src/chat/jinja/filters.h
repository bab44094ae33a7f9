#pragma once
// value | filter(...): all of jinja2's, with transformers' tojson.
#include <string_view>

#include "chat/jinja/runtime.h"

namespace tessera::chat {

using Filter = Value (*)(Runtime&, const Value& input, Arguments);

struct FilterEntry {
  std::string_view name;
  Filter filter;
};

/// Null where there is none of that name.
Filter find_filter(std::string_view name);
/// All of them.
std::vector<FilterEntry> all_filters();

// The parts of the table: text_filters.cc, sequence_filters.cc, select_filters.cc, number_filters.cc.
const std::vector<FilterEntry>& text_filters();
const std::vector<FilterEntry>& sequence_filters();
const std::vector<FilterEntry>& select_filters();
const std::vector<FilterEntry>& number_filters();

/// TypeError where a filter that takes none has arguments.
void no_filter_arguments(Arguments);
/// "a.b.0": the attribute of an attribute, or an item; `path` may be an integer. None: the value itself.
/// `otherwise` takes the place of what is undefined on the way, unless it is none.
Value get_path(const Value& value, const Value& path, const Value& otherwise = {});
/// Strings in lower case, others as they are: what sort, unique, min, max and groupby compare by default.
Value ignore_case(const Value& value);

}  // namespace tessera::chat
