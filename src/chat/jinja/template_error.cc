#include "chat/jinja/template_error.h"

#include <fmt/format.h>

namespace tessera::chat {
namespace {

std::string with_position(ErrorKind kind, const std::string& message, Position at) {
  if (kind == ErrorKind::kRaised || at.line == 0) return message;
  return fmt::format("{} (line {}, column {} of the template)", message, at.line, at.column);
}

}  // namespace

TemplateError::TemplateError(ErrorKind kind, const std::string& message, Position at)
    : Error(with_position(kind, message, at)), kind(kind), message(message), at(at) {}

void fail(ErrorKind kind, const std::string& message) {
  throw TemplateError(kind, message);
}

}  // namespace tessera::chat
