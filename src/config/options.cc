#include "config/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "config/other_spellings.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

/// "--batch-size", "batch_size" -> "batch_size".
std::string plain(std::string name) {
  name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// "-1" and "-.5" are values, "-t" and "--lr" are flags.
bool is_flag(const std::string& word) {
  const std::size_t at = word.starts_with("--") ? 2 : 1;
  return word.size() > at && word[0] == '-' &&
         (std::isalpha(static_cast<unsigned char>(word[at])) != 0 || word[at] == '_');
}

void set_environment(const Node& variables, const std::string& where) {
  for (const Node::Entry& own : variables.entries) {
    if (own.value.kind != Node::Kind::kScalar || ::setenv(own.key.c_str(), own.value.text.c_str(), 1) != 0)
      throw ConfigError(fmt::format("{}env expects lines of the form 'VARIABLE: text', found '{}'", where, own.key),
                        "env");
  }
}

}  // namespace

bool is_flag_file(const std::string& word) {
  return word.ends_with(".json") || word.ends_with(".yaml") || word.ends_with(".yml");
}

Option& Option::choices(std::vector<std::string> allowed) {
  choices_ = std::move(allowed);
  return *this;
}

Option& Option::known_values(std::vector<std::string> values) {
  takes_others_ = true;
  return choices(std::move(values));
}

Option& Option::required() {
  required_ = true;
  return *this;
}

Option& Option::reads(std::string word, std::string as_value) {
  binding_.reads_none |= word == "none";
  binding_.set = [set = binding_.set, word = std::move(word),
                  value = std::move(as_value)](const std::vector<std::string>& words) {
    const bool stands_for_it = words.size() == 1 && detail::equal_ignoring_case(words[0], word);
    return set(stands_for_it ? std::vector{value} : words);
  };
  return *this;
}

Option& Option::repeats() {
  TESSERA_CHECK(binding_.is_list, names_[0] + " is no list");
  repeats_ = true;
  return *this;
}

Option& Option::placeholder(std::string text) {
  binding_.placeholder = std::move(text);
  return *this;
}

struct OptionTable::Assignment {
  Option* option;
  std::vector<std::string> words;
  std::string flag;  // as the user typed it
};

/// What the command line says, before anything is assigned: a file of flags is applied first, wherever it stands.
struct OptionTable::Scan {
  const std::vector<std::string>& args;
  Problems& problems;
  std::size_t at = 0;
  std::size_t positionals = 0;    // seen so far
  bool only_positionals = false;  // after "--"
  bool any_unknown = false;       // what follows an unknown flag may be its value
  std::string flag_file = {};
  std::vector<Assignment> assignments = {};
};

OptionTable::OptionTable(std::string command, std::string summary)
    : command_(std::move(command)), summary_(std::move(summary)) {}

Option& OptionTable::add_binding(Binding binding, std::vector<std::string> names, std::string help, std::string group) {
  for (const std::string& name : names) {
    TESSERA_CHECK(find(name) == nullptr, "option " + name + " is added twice to " + command_);
    if (name.ends_with('*'))
      by_first_characters_.emplace_back(plain(name.substr(0, name.size() - 1)), options_.size());
    else
      by_name_[plain(name)] = options_.size();
  }
  Option& option = options_.emplace_back();
  option.names_ = std::move(names);
  option.help_ = std::move(help);
  option.group_ = std::move(group);
  option.default_ = binding.show();
  option.binding_ = std::move(binding);
  return option;
}

Option& OptionTable::add_positional(Binding binding, const std::string& name, std::string help) {
  Option& option = add_binding(std::move(binding), {}, std::move(help), "Arguments");
  option.names_ = {name};
  option.positional_ = true;
  return option;
}

Option& OptionTable::positional(std::string* target, const std::string& name, std::string help) {
  return add_positional(bind(target), name, std::move(help)).required();
}

Option& OptionTable::positional(std::optional<std::string>* target, const std::string& name, std::string help) {
  return add_positional(bind(target), name, std::move(help));
}

Option& OptionTable::positional(std::vector<std::string>* target, const std::string& name, std::string help) {
  return add_positional(bind(target), name, std::move(help)).required();
}

Option& OptionTable::rest(std::vector<std::string>* target, const std::string& name, std::string help) {
  Option& option = add_positional(bind(target), name, std::move(help));
  option.takes_rest_ = true;
  return option;
}

const Option* OptionTable::find(const std::string& name) const {
  const std::string wanted = plain(name);
  if (const auto found = by_name_.find(wanted); found != by_name_.end()) return &options_[found->second];
  for (const auto& [first, index] : by_first_characters_)
    if (wanted.starts_with(first)) return &options_[index];
  return nullptr;
}

Option* OptionTable::find(const std::string& name) {
  return const_cast<Option*>(static_cast<const OptionTable*>(this)->find(name));
}

std::vector<std::string> OptionTable::names() const {
  std::vector<std::string> all;
  for (const Option& option : options_) {
    if (!option.positional_) all.insert(all.end(), option.names_.begin(), option.names_.end());
  }
  return all;
}

std::vector<std::string> OptionTable::names_that_work() const {
  std::vector<std::string> all;
  for (const Option& option : options_) {
    const bool works = option.effect_ == Option::Effect::kWorks && !option.positional_;
    if (works) all.insert(all.end(), option.names_.begin(), option.names_.end());
  }
  return all;
}

bool OptionTable::given(const std::string& name) const {
  const Option* option = find(name);
  TESSERA_CHECK(option != nullptr, "no option " + name + " in " + command_);
  return option->given_;
}

std::string OptionTable::text(const std::string& name) const {
  const Option* option = find(name);
  TESSERA_CHECK(option != nullptr, "no option " + name + " in " + command_);
  return option->binding_.show();
}

std::vector<std::pair<std::string, std::string>> OptionTable::given_values() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Option& option : options_) {
    const std::string text = option.given_ ? option.binding_.show() : std::string();
    if (!text.empty() && option.effect_ == Option::Effect::kWorks) out.emplace_back(plain(option.names_[0]), text);
  }
  return out;
}

void OptionTable::set(Option& option, const std::vector<std::string>& words, const std::string& where,
                      const std::string& flag) {
  const auto fail = [&](const std::string& expects) {
    throw ConfigError(fmt::format("{}{} expects {}, found '{}'", where, flag, expects, fmt::join(words, " ")),
                      plain(option.names_.front()));
  };
  for (const std::string& word : words) {
    const auto& allowed = option.choices_;
    if (allowed.empty() || option.takes_others_ || std::find(allowed.begin(), allowed.end(), word) != allowed.end())
      continue;
    fail("one of " + detail::one_of(allowed));
  }
  if (!option.binding_.set(words)) fail(option.binding_.expects);
  option.given_ = true;
  if (is_refused(option, words))
    throw ConfigError(fmt::format("{}{} is not supported: {}", where, flag, option.help_), plain(flag));
}

ParseResult OptionTable::parse(const std::vector<std::string>& args) {
  Problems problems;
  const ParseResult result = parse(args, problems);
  if (result == ParseResult::kRun) problems.throw_all();
  return result;
}

ParseResult OptionTable::parse(const std::vector<std::string>& args, Problems& problems) {
  Scan scan{args, problems};
  while (scan.at < args.size()) {
    const std::string& word = args[scan.at];
    if (!scan.only_positionals && word == "--") {
      scan.only_positionals = true;
      ++scan.at;
    } else if (!scan.only_positionals && (word == "-h" || word == "--help" || word == "--help=json")) {
      json_help_ = word == "--help=json";
      return ParseResult::kHelp;
    } else if (!scan.only_positionals && is_flag(word)) {
      scan_flag(scan);
    } else {
      scan_positional(scan);
    }
  }
  if (!scan.flag_file.empty()) {
    problems.set_source(Problems::Source::kHost);  // also of what is checked later, which the file may have set
    problems.attempt([&] { read_file(scan.flag_file, problems); });
  }
  for (const Assignment& a : scan.assignments)
    problems.attempt(Problems::Source::kWords, [&] { set(*a.option, a.words, "", a.flag); });
  check_required(problems);
  imply();
  return ParseResult::kRun;
}

void OptionTable::scan_flag(Scan& scan) {
  const std::string& word = scan.args[scan.at++];
  const std::size_t equals = word.find('=');
  const std::string flag = word.substr(0, equals);
  if (Option* option = find(flag)) {
    scan.problems.attempt([&] {
      std::vector<std::string> words;
      if (equals == std::string::npos) {
        words = take_values(scan, *option, flag);
      } else {
        const std::string value = word.substr(equals + 1);
        words = option->binding_.is_list ? split_words(value) : std::vector<std::string>{value};
      }
      remember(scan, *option, std::move(words), flag);
    });
    return;
  }
  if (plain(flag) == "config" && !has_positionals()) return scan_config(scan, word);
  Option* negated = plain(flag).starts_with("no_") ? find(plain(flag).substr(3)) : nullptr;
  if (negated != nullptr && negated->binding_.is_bool && equals == std::string::npos) {
    scan.assignments.push_back({negated, {"false"}, flag});
  } else {
    scan_unknown(scan, flag);
    if (equals == std::string::npos) skip_values(scan);
  }
}

std::vector<std::string> OptionTable::take_flags(std::vector<std::string>& words,
                                                 const std::function<bool(const std::string&)>& wanted) const {
  std::vector<std::string> taken, left;
  Problems unused;
  for (Scan scan{words, unused}; scan.at < words.size();) {
    const std::size_t from = scan.at++;
    const std::size_t equals = words[from].find('=');
    const std::string flag = words[from].substr(0, equals);
    const Option* option = flag.starts_with("--") && wanted(plain(flag)) ? find(flag) : nullptr;
    if (option != nullptr && equals == std::string::npos) (void)take_values(scan, *option, flag);
    auto& to = option != nullptr ? taken : left;
    to.insert(to.end(), words.begin() + static_cast<std::ptrdiff_t>(from),
              words.begin() + static_cast<std::ptrdiff_t>(scan.at));
  }
  words = std::move(left);
  return taken;
}

void OptionTable::pass_over_in_files(std::function<bool(const std::string&)> is_of_others) {
  is_of_others_ = std::move(is_of_others);
}

void OptionTable::remember(Scan& scan, Option& option, std::vector<std::string> words, const std::string& flag) {
  const bool adds_up = option.repeats_ || option.positional_;
  const auto before = std::find_if(scan.assignments.begin(), scan.assignments.end(),
                                   [&](const Assignment& a) { return a.option == &option && adds_up; });
  if (before == scan.assignments.end()) {
    scan.assignments.push_back({&option, std::move(words), flag});
  } else {
    before->words.insert(before->words.end(), words.begin(), words.end());
  }
}

std::string OptionTable::where_to_look() const {
  const bool starts_others =
      std::any_of(options_.begin(), options_.end(), [](const Option& o) { return o.takes_rest_; });
  return fmt::format("{}'{} --help' lists all flags{}",
                     has_positionals() && !starts_others ? "usage: " + usage() + "; " : "", command_,
                     starts_others ? "; those of a task stand behind its name" : "");
}

void OptionTable::scan_unknown(Scan& scan, const std::string& flag) {
  scan.any_unknown = true;
  scan.problems.add(fmt::format("unknown flag {}{}", flag, meant_by(flag, names_that_work())), plain(flag));
  scan.problems.set_hint(where_to_look());
}

/// --config FILE or --config=FILE.
void OptionTable::scan_config(Scan& scan, const std::string& word) const {
  const auto fail = [&](const std::string& what) { scan.problems.add(what, "config"); };
  const std::size_t equals = word.find('=');
  const bool has_value = equals != std::string::npos || (scan.at < scan.args.size() && !is_flag(scan.args[scan.at]));
  if (!has_value) return fail(word + " expects a file of flags");
  const std::string file = equals != std::string::npos ? word.substr(equals + 1) : scan.args[scan.at++];
  if (!scan.flag_file.empty())
    return fail(fmt::format("two files of flags, {} and {}; keep one", scan.flag_file, file));
  scan.flag_file = file;
}

/// Of an unknown flag. Beside arguments without dashes one word, where a flag of this table comes next.
void OptionTable::skip_values(Scan& scan) const {
  const auto& args = scan.args;
  const auto is_value = [&](std::size_t at) {
    return at < args.size() && !is_flag(args[at]) && args[at] != "--" && !is_flag_file(args[at]);
  };
  if (has_positionals()) {
    const std::size_t next = scan.at + 1;
    if (is_value(scan.at) && next < args.size() && is_flag(args[next]) && find(args[next]) != nullptr) ++scan.at;
  } else {
    while (is_value(scan.at)) ++scan.at;
  }
}

std::vector<std::string> OptionTable::take_values(Scan& scan, const Option& option, const std::string& flag) const {
  const auto& args = scan.args;
  const bool has_value = scan.at < args.size() && !is_flag(args[scan.at]) && args[scan.at] != "--";
  // Where arguments without dashes have a meaning of their own, a word belongs to a flag only if it must, or if it is
  // one of the flag's choices.
  const bool alone = !has_positionals();
  if (option.binding_.is_bool) {
    const bool takes = has_value && (parse_bool(args[scan.at]) || (alone && !is_flag_file(args[scan.at])));
    return {takes ? args[scan.at++] : "true"};
  }
  if (!has_value) {
    const std::string found = scan.at < args.size() ? "the flag " + args[scan.at] : "nothing";
    throw ConfigError(fmt::format("{0} expects {1}, found {2}; a value that begins with a dash is written {0}=VALUE",
                                  flag, option.binding_.expects, found),
                      plain(option.names_.front()));
  }
  if (!option.binding_.is_list) return {args[scan.at++]};
  const auto is_choice = [&](const std::string& word) {
    return std::find(option.choices_.begin(), option.choices_.end(), word) != option.choices_.end();
  };
  std::vector<std::string> words;
  do {
    for (std::string& word : split_words(args[scan.at++])) words.push_back(std::move(word));
  } while (scan.at < args.size() && !is_flag(args[scan.at]) && args[scan.at] != "--" &&
           (alone || is_choice(args[scan.at])));
  return words;
}

void OptionTable::scan_positional(Scan& scan) {
  const std::string& word = scan.args[scan.at];
  std::size_t seen = 0;
  for (Option& option : options_) {
    if (!option.positional_) continue;
    if (option.takes_rest_) {
      scan.assignments.push_back(
          {&option, {scan.args.begin() + static_cast<std::ptrdiff_t>(scan.at), scan.args.end()}, option.names_[0]});
      scan.at = scan.args.size();
      return;
    }
    if (seen++ < scan.positionals) continue;
    ++scan.at;
    if (option.binding_.is_list) return remember(scan, option, {word}, option.names_[0]);
    ++scan.positionals;
    scan.assignments.push_back({&option, {word}, option.names_[0]});
    return;
  }
  ++scan.at;
  if (seen == 0 && is_flag_file(word) && scan.flag_file.empty()) {
    scan.flag_file = word;
  } else if (!scan.any_unknown) {
    scan.problems.add(
        fmt::format("unexpected argument '{}'; flags begin with --, and '{} --help' lists them", word, command_));
  }
}

bool OptionTable::has_positionals() const {
  return std::any_of(options_.begin(), options_.end(), [](const Option& o) { return o.positional_; });
}

void OptionTable::check_required(Problems& problems) const {
  for (const Option& option : options_) {
    if (!option.required_ || option.given_) continue;
    problems.add(fmt::format("{} is required ({})", option.names_[0], option.help_), plain(option.names_[0]));
    problems.set_hint(where_to_look());
  }
}

bool OptionTable::assign(const std::string& name, const Node& value, const std::string& where) {
  Option* option = find(name);
  if (option == nullptr) return false;
  std::vector<std::string> words;
  switch (value.kind) {
    case Node::Kind::kNull:  // Python's None; where an option knows none, nothing
      if (option->binding_.reads_none) option->binding_.set({"none"});
      return true;
    case Node::Kind::kScalar:
      words = option->binding_.is_list     ? split_words(value.text)
              : option->binding_.is_number ? std::vector{number_text(value)}
                                           : std::vector{value.text};
      break;
    case Node::Kind::kList:
      for (const Node& item : value.items) {
        if (option->binding_.is_list && item.kind != Node::Kind::kScalar)
          throw ConfigError(
              fmt::format("{}{} expects {}, found a list of other things", where, name, option->binding_.expects),
              name);
        words.push_back(item.text);
      }
      if (option->binding_.is_list) break;
      [[fallthrough]];
    case Node::Kind::kMap:
      if (option->binding_.placeholder == "JSON" || option->effect_ != Option::Effect::kWorks) {
        words = {json_of(value)};
        break;
      }
      throw ConfigError(fmt::format("{}{} expects {}, found a {}", where, name, option->binding_.expects,
                                    value.kind == Node::Kind::kMap ? "mapping" : "list"),
                        name);
  }
  set(*option, words, where, name);
  return true;
}

void OptionTable::read_file(const std::string& path, Problems& problems) {
  const Node document = read_document(path);
  for (const Node::Entry& entry : document.entries) {
    if (entry.key == "compute_environment" && find(entry.key) == nullptr)
      return problems.add(
          fmt::format("{0} is a config file of the launcher: 'tessera launch --config_file {0} TASK ...'", path));
  }
  for (const Node::Entry& entry : document.entries) {
    const std::string where = at_line(path, entry.line);
    bool known = true;
    if (entry.key == "env" && find("env") == nullptr && entry.value.kind == Node::Kind::kMap) {
      problems.attempt([&] { set_environment(entry.value, where); });
      continue;
    }
    problems.attempt([&] { known = assign(entry.key, entry.value, where); });
    if (known || (is_of_others_ && is_of_others_(entry.key))) continue;
    problems.add(fmt::format("{}unknown option '{}'{}", where, entry.key, meant_by(entry.key, names_that_work())),
                 entry.key);
    problems.set_hint(fmt::format("'{} --help' lists all options", command_));
  }
}

}  // namespace tessera::config
