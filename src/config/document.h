#pragma once
// A YAML or JSON file as a tree of texts with line numbers: what both the flag files and accelerate's file are read
// from. Scalars stay text, as written; the option that receives one decides what it may be.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::config {

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  int line = 0;                // 1-based; 0 in JSON
  std::string text;            // kScalar
  bool is_quoted = false;      // of it: a text, whatever it looks like
  std::vector<Node> items;     // kList
  std::vector<Entry> entries;  // kMap, in file order, keys unique
};

struct Node::Entry {
  std::string key;
  int line = 0;
  Node value;
};

/// The file's top-level mapping; the ending .json means JSON, all others YAML. ConfigError names the file, line and
/// reason: not found, syntax, no mapping at the top, a key given twice, larger or deeper than any configuration.
Node read_document(const std::string& path);

/// The same from memory; `name` stands for the file in messages.
Node parse_yaml(std::string_view text, const std::string& name);
Node parse_json(std::string_view text, const std::string& name);

/// A scalar for an option that is a number: whole numbers that are not in quotes as YAML 1.1 (PyYAML) reads them, 010
/// is 8, 0x1F 31, 1_000 1000. All else as it is written.
std::string number_text(const Node& scalar);

/// As one line of JSON: for options whose text is JSON. What stands without quotes is what YAML 1.1 (PyYAML) makes of
/// it (False, no, off), or else what JSON does (1e-4).
std::string json_of(const Node& node);

/// "file.yaml:3: ", or "file.json: " where the line is unknown.
std::string at_line(const std::string& name, int line);

}  // namespace tessera::config
