#pragma once
// A chat template: jinja2 as transformers sets it up (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop
// controls, tojson without HTML escapes, raise_exception, strftime_now, {% generation %}).
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/budget.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/parser.h"
#include "chat/jinja/value.h"

namespace tessera::chat {

struct Rendered {
  std::string text;
  /// Where {% generation %} blocks lie: [begin, end) in code points of the text.
  std::vector<Span> generation_spans;
};

/// Thread-safe once it is made.
class Template {
 public:
  /// TemplateError(kSyntax, kLimit) with line and column.
  explicit Template(std::string_view source) : parsed_(parse_template(source)) {}

  /// TemplateError with the line and column that were being run.
  Rendered render(const std::map<std::string, Value>& variables, const RenderLimits& limits = {}) const;

  /// Whether the template reads this variable somewhere.
  bool reads(const std::string& name) const { return parsed_.names.contains(name); }

 private:
  ParsedTemplate parsed_;
};

}  // namespace tessera::chat
