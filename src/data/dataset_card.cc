#include "data/dataset_card.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "base/file.h"
#include "base/open_file.h"
#include "config/document.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using config::Node;

const Node* entry_of(const Node& map, std::string_view key) {
  for (const auto& entry : map.entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

class Card {
 public:
  explicit Card(const std::string& file) : file_(file) {}

  std::vector<CardConfig> read() const {
    const std::string yaml = front_matter();
    if (yaml.empty()) return {};
    const Node root = parse(yaml);
    const Node* configs = entry_of(root, "configs");
    if (!configs || configs->kind == Node::Kind::kNull) return {};
    if (configs->kind != Node::Kind::kList) fail(*configs, "'configs' is no list");
    std::vector<CardConfig> out;
    for (const Node& config : configs->items) out.push_back(config_of(config));
    for (CardConfig& config : out) config.is_default = config.is_default || config.name == "default" || out.size() == 1;
    return out;
  }

 private:
  /// The key `configs` alone, behind as many empty lines as stand before it; the rest of a card is not read.
  std::string front_matter() const {
    if (!is_there(file_)) return {};
    std::istringstream text(read_text_file(file_));
    std::string line, out;
    if (!std::getline(text, line) || !is_fence(line)) return {};
    bool inside = false, any = false;
    out = "\n";
    while (std::getline(text, line) && !is_fence(line)) {
      const bool is_key = !line.empty() && line[0] != ' ' && line[0] != '-' && line[0] != '#' && line[0] != '\r';
      if (is_key) inside = line.starts_with("configs:");
      any = any || inside;
      out += (inside ? line : "") + "\n";
    }
    return any ? out : "";
  }
  static bool is_fence(const std::string& line) { return line == "---" || line == "---\r"; }

  Node parse(const std::string& yaml) const {
    try {
      return config::parse_yaml(yaml, file_);
    } catch (const ConfigError& e) {
      throw DataError(e.what(), file_);
    }
  }

  [[noreturn]] void fail(const Node& node, const std::string& what) const {
    throw DataError(fmt::format("{}the card's {}; expected configs: - config_name: NAME, data_files: a pattern, a list "
                                "of patterns, or a list of split: NAME, path: PATTERN",
                                config::at_line(file_, node.line), what),
                    file_);
  }

  std::string text_of(const Node& map, std::string_view key) const {
    const Node* node = entry_of(map, key);
    if (!node || node->kind == Node::Kind::kNull) return {};
    if (node->kind != Node::Kind::kScalar) fail(*node, fmt::format("'{}' is no text", key));
    return node->text;
  }

  CardConfig config_of(const Node& node) const {
    CardConfig out;
    if (node.kind == Node::Kind::kMap) out.name = text_of(node, "config_name");
    if (out.name.empty()) fail(node, "configuration has no 'config_name'");
    out.folder = text_of(node, "data_dir");
    if (!out.folder.empty() && !out.folder.ends_with('/')) out.folder += '/';
    while (out.folder.starts_with("./")) out.folder.erase(0, 2);
    out.is_default = text_of(node, "default") == "true";
    const Node* files = entry_of(node, "data_files");
    if (files && files->kind != Node::Kind::kNull) out.splits = splits_of(*files, out.folder);
    return out;
  }

  std::vector<CardSplit> splits_of(const Node& files, const std::string& folder) const {
    const bool by_split =
        files.kind == Node::Kind::kList && std::any_of(files.items.begin(), files.items.end(),
                                                       [](const Node& item) { return item.kind == Node::Kind::kMap; });
    if (!by_split) return {{"train", patterns_of(files, folder)}};
    std::vector<CardSplit> out;
    for (const Node& item : files.items) {
      const Node* path = entry_of(item, "path");
      const std::string split = item.kind == Node::Kind::kMap ? text_of(item, "split") : "";
      if (split.empty() || !path) fail(item, "'data_files' has an entry without 'split' or 'path'");
      if (std::any_of(out.begin(), out.end(), [&](const CardSplit& s) { return s.name == split; }))
        fail(item, "'data_files' names the split '" + split + "' twice");
      out.push_back({split, patterns_of(*path, folder)});
    }
    return out;
  }

  std::vector<std::string> patterns_of(const Node& node, const std::string& folder) const {
    std::vector<std::string> out;
    const auto add = [&](const Node& item) {
      if (item.kind != Node::Kind::kScalar || item.text.empty())
        fail(item, "'data_files' has a pattern that is no text");
      if (item.text.find("://") != std::string::npos)
        fail(item,
             "'data_files' names '" + item.text + "', which is not in the data set: download it, and give its path");
      out.push_back(folder + (item.text.starts_with("./") ? item.text.substr(2) : item.text));
    };
    if (node.kind == Node::Kind::kList)
      std::for_each(node.items.begin(), node.items.end(), add);
    else
      add(node);
    return out;
  }

  const std::string& file_;
};

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> out;
  while (!path.empty()) {
    const auto slash = std::min(path.find('/'), path.size() - 1);
    out.emplace_back(path.substr(0, path[slash] == '/' ? slash : slash + 1));
    path.remove_prefix(slash + 1);
  }
  return out;
}

}  // namespace

std::vector<CardConfig> read_dataset_card(const std::string& file) {
  return Card(file).read();
}

bool matches_pattern(std::string_view pattern, std::string_view path) {
  const auto own = parts_of(pattern), names = parts_of(path);
  const auto is_hidden = [&](const std::string& name, std::size_t i) {
    return name.starts_with('.') || (name.starts_with("__") && i + 1 < names.size());
  };
  // Whether the parts of the pattern behind one, or from it on, match the names from the i-th on; from the last part
  // back.
  std::vector<bool> behind(names.size() + 1), from(names.size() + 1);
  behind.back() = true;
  for (auto part = own.rbegin(); part != own.rend(); ++part) {
    from.assign(names.size() + 1, false);
    for (std::size_t i = names.size(); i-- > 0;) {
      const bool is_seen = !is_hidden(names[i], i);
      if (*part != "**")
        from[i] =
            (is_seen || is_hidden(*part, i)) && behind[i + 1] && ::fnmatch(part->c_str(), names[i].c_str(), 0) == 0;
      else  // any number of folders; at the end of a pattern, also the file
        from[i] = behind[i] || (is_seen && (from[i + 1] || (part == own.rbegin() && i + 1 == names.size())));
    }
    behind.swap(from);
  }
  return behind.front();
}

}  // namespace tessera::data
