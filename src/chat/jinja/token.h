#pragma once
#include <string>
#include <vector>

#include "chat/jinja/template_error.h"
#include "chat/jinja/value.h"

namespace tessera::chat {

enum class TokenKind {
  kData,           // text outside of tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // a name, an operator, a string's value, data
  Position at;
  Value number = {};  // of kInteger and kFloat
};

/// What an error message calls it.
std::string describe(const Token& token);

/// Comments and raw blocks are resolved, whitespace is trimmed as jinja2 does with trim_blocks and lstrip_blocks. The
/// last token is kEnd. TemplateError(kSyntax).
std::vector<Token> tokenize(std::string_view source);

}  // namespace tessera::chat
