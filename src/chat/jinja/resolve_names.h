#pragma once
#include "chat/jinja/ast.h"

namespace tessera::chat {

/// Tells names of the context from those that the template sets itself, as jinja2 does when it compiles: a name belongs
/// to the outermost frame (the template, a loop, a macro ...) that mentions it in statements of its own. Where that
/// frame sets it first, and not in an {% if %}, the context's value is never seen in it.
void resolve_names(Body& body);

}  // namespace tessera::chat
