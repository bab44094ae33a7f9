#pragma once
// Which template a row of data gets, parsed once.
#include <map>
#include <mutex>
#include <string>

#include "chat/jinja/template.h"
#include "chat/tokenizer_template.h"

namespace tessera::chat {

/// A template that was parsed, and where it stands, for messages.
struct PlacedTemplate {
  Template source;
  std::string place;
};

/// " in 'PLACE'", for messages; nothing where no place is known.
std::string in_place(const std::string& place);

/// Thread-safe.
class RowTemplates {
 public:
  using Variables = std::map<std::string, Value>;

  /// The tokenizer's. name: as TokenizerTemplates::choose().
  explicit RowTemplates(TokenizerTemplates own, std::string name = "") : own_(std::move(own)), name_(std::move(name)) {}
  /// One for all rows.
  RowTemplates(const std::string& source, const std::string& place)
      : own_{.templates = {{"default", source}}, .files = {{"default", place}}}, name_("default") {}

  /// Whether there is one for a row with these variables: "tools" that are not none may choose another.
  bool has(const Variables& row) const { return own_.has(name_, has_tools(row)); }
  /// DataError: there is none, or it cannot be parsed.
  const PlacedTemplate& of(const Variables& row) const;

 private:
  static bool has_tools(const Variables& row);

  TokenizerTemplates own_;
  std::string name_;
  mutable std::mutex mutex_;
  mutable std::map<bool, PlacedTemplate> parsed_;  // by whether the row has tools
};

}  // namespace tessera::chat
