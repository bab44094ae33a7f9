#include "chat/jinja/budget.h"

#include <fmt/format.h>

#include "chat/jinja/template_error.h"

namespace tessera::chat {

void Budget::refuse_work() {
  work_ = limits_.work;
  fail(ErrorKind::kLimit,
       fmt::format("the template does too much work (more than {} units, about a second's); it may not end",
                   limits_.work));
}

void Budget::refuse_memory() const {
  fail(ErrorKind::kLimit,
       fmt::format("the template makes too much: its values need more than {} MiB", limits_.memory >> 20));
}

}  // namespace tessera::chat
