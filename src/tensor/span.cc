#include "tensor/span.h"

#include <string>

namespace tessera::tensor {

Span::Span(std::string_view what, std::string_view name) {
  auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!observers) return;
  record_.emplace(std::move(*observers));
  std::string text(what);
  if (!name.empty()) text.append(" ").append(name);
  record_->before(std::move(text));
}

}  // namespace tessera::tensor
