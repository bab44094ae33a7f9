#include "chat/row_templates.h"

#include <fmt/format.h>

#include "chat/jinja/template_error.h"
#include "tessera/base/error.h"

namespace tessera::chat {

bool RowTemplates::has_tools(const Variables& row) {
  const auto tools = row.find("tools");
  return tools != row.end() && !tools->second.is_none();
}

const PlacedTemplate& RowTemplates::of(const Variables& row) const {
  const bool with_tools = has_tools(row);
  const std::lock_guard lock(mutex_);
  if (const auto it = parsed_.find(with_tools); it != parsed_.end()) return it->second;
  const auto& place = own_.file_of(name_, with_tools);
  try {
    return parsed_.emplace(with_tools, PlacedTemplate{Template(own_.choose(name_, with_tools)), place}).first->second;
  } catch (const TemplateError& e) {
    throw DataError(fmt::format("the chat template{} cannot be used: {}", in_place(place), e.what()), place, e.at.line);
  }
}

std::string in_place(const std::string& place) {
  return place.empty() ? "" : fmt::format(" in '{}'", place);
}

}  // namespace tessera::chat
