#pragma once
// The functions that every template has: range, dict, namespace, cycler, joiner, lipsum, raise_exception, strftime_now.
#include <map>
#include <string>

#include "chat/jinja/value.h"

namespace tessera::chat {

/// All of them. namespace() is the interpreter's own.
const std::map<std::string, Value>& all_globals();
/// Null where there is none of that name.
const Value* find_global(const std::string& name);

/// dict(mapping_or_pairs, **named), also what namespace() starts from.
Dict make_dict_from(Arguments arguments);

}  // namespace tessera::chat
