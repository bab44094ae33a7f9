#pragma once
// What a tokenizer folder says about chats.
#include <map>
#include <string>

#include "chat/jinja/value.h"
#include "text/tokenizer.h"

namespace tessera::chat {

struct TokenizerTemplates {
  /// By name; "default" is the one of a folder that has only one. Empty: the folder has none.
  std::map<std::string, std::string> templates = {};
  /// The file that each of them stands in.
  std::map<std::string, std::string> files = {};
  /// bos_token, eos_token, pad_token, unk_token, ... and additional_special_tokens: variables of every template.
  std::map<std::string, Value> special_tokens = {};
  std::string folder = {};

  /// The template's source: `name`, or when that is empty "tool_use" where tools are given and it exists, else
  /// "default". DataError lists the names there are.
  const std::string& choose(const std::string& name, bool with_tools) const;
  bool has(const std::string& name, bool with_tools) const { return templates.contains(wanted(name, with_tools)); }
  /// The file that the source stands in.
  const std::string& file_of(const std::string& name, bool with_tools) const;

 private:
  std::string wanted(const std::string& name, bool with_tools) const;
  std::string known(const std::string& name, bool with_tools) const;
};

/// The special tokens as apply_chat_template() hands them to templates: bos_token, ..., additional_special_tokens, and
/// a model's own by their names.
std::map<std::string, Value> template_variables(const text::SpecialTokens& tokens);

/// The source of a built-in template (builtin_template()), or of a file in UTF-8. DataError names the file.
std::string template_source(const std::string& name_or_file);

/// What text::read_tokenizer_config() says of a folder, or of the folder that the named file lies in, else its
/// chat_template.json; or the keys of a GGUF file. DataError names the file.
TokenizerTemplates read_tokenizer_templates(const std::string& folder_or_file);

}  // namespace tessera::chat
