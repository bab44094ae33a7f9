#include "chat/jinja/template.h"

namespace tessera::chat {

Rendered Template::render(const std::map<std::string, Value>& variables, const RenderLimits& limits) const {
  Budget budget(limits);
  Interpreter interpreter(variables, limits.depth);
  Rendered out;
  out.text = interpreter.run(parsed_.body, parsed_.blocks);
  out.generation_spans = interpreter.spans();
  return out;
}

}  // namespace tessera::chat
