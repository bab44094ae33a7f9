#include "chat/jinja/template_self.h"

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/native_function.h"

namespace tessera::chat {

std::optional<Value> TemplateSelf::attribute(std::string_view name) const {
  const auto it = interpreter_.blocks_->find(std::string(name));
  if (it == interpreter_.blocks_->end()) return std::nullopt;
  return make_function(it->first, [&run = interpreter_, block = it->second](Runtime&, Arguments arguments) -> Value {
    const BoundArguments none("block", std::move(arguments), {});
    const Interpreter::Deeper deeper(run);
    run.outputs_.emplace_back();
    run.run_block(*block);
    std::string text = run.outputs_.back().take();
    run.outputs_.pop_back();
    return text;
  });
}

}  // namespace tessera::chat
