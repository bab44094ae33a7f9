#pragma once
// Conversations -> text, as transformers' apply_chat_template(tokenize=False).
#include <map>
#include <string>

#include "chat/jinja/template.h"

namespace tessera::chat {

/// `row` holds "messages" and whatever else the template reads. As transformers does: "tools" and "documents" are none
/// and "add_generation_prompt" is false unless given; "continue_final_message" is no variable but cuts the text behind
/// the last message's content (with `add_generation_prompt` that is an error); the spans stay those of the text before
/// the cut, as there. Throws TemplateError.
Rendered render_chat(const Template& chat_template, std::map<std::string, Value> row, const RenderLimits& limits = {});

/// The templates that the SFT script knows by name: "chatml" and "zephyr". Null for others.
const char* builtin_template(std::string_view name);

}  // namespace tessera::chat
