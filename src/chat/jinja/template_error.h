#pragma once
// What goes wrong in a template.
#include <cstdint>
#include <string>

#include "tessera/base/error.h"

namespace tessera::chat {

/// Where a piece of a template begins: line and column, 1-based, the column in code points. {0, 0}: not known.
struct Position {
  std::int32_t line = 0, column = 0;
};

enum class ErrorKind {
  kSyntax,     // the template cannot be parsed
  kRaised,     // the template called raise_exception()
  kUndefined,  // an undefined value was used
  kSecurity,   // an attribute that the sandbox refuses
  kLimit,      // too deep, too long, too much work (see budget.h)
  kType,       // an operation that the values do not have, as in Python
  kValue,      // a value that the operation refuses, as in Python
};

/// `message` is what jinja2 says; what() adds the position, except for raise_exception, whose text is the template
/// author's.
class TemplateError : public Error {
 public:
  TemplateError(ErrorKind kind, const std::string& message, Position at = {});
  ErrorKind kind;
  std::string message;
  Position at;
};

[[noreturn]] void fail(ErrorKind kind, const std::string& message);
[[noreturn]] inline void type_error(const std::string& message) {
  fail(ErrorKind::kType, message);
}
[[noreturn]] inline void value_error(const std::string& message) {
  fail(ErrorKind::kValue, message);
}

}  // namespace tessera::chat
