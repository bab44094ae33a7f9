#pragma once
// One table of options gives the command-line parser, the reader of flag files and the help text of a command.
//
//   Options o;
//   OptionTable table("tessera seq2seq", "fine-tunes an encoder-decoder model");
//   table.add(&o.learning_rate, {"--learning_rate", "--lr"}, "peak learning rate", "Training");
//   table.add(&o.schedule, {"--lr_scheduler_type"}, "shape of the schedule", "Training").choices({"linear", "cosine"});
//   if (table.parse(args) == ParseResult::kHelp) out << table.help();
//
// Semantics follow HfArgumentParser: dashes and underscores are interchangeable; `--flag value` and `--flag=value`; a
// bare boolean flag is true and `--no_flag` false; a list takes commas, spaces or several words; of duplicates the last
// wins, unless they add up; where there are no positional arguments, --config FILE, or an argument that ends in .json,
// .yaml or .yml, is a file of flags (flags on the command line win over it), whose mapping `env` sets variables of the
// environment, as TrlParser's. What is wrong with a command line is said at once (config/problems.h).
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/document.h"
#include "config/option_value.h"
#include "config/problems.h"

namespace tessera::config {

enum class ParseResult { kRun, kHelp };

/// Whether an argument without a flag is taken for a file of flags.
bool is_flag_file(const std::string& word);

/// What a flag without effect takes. All but those of texts take "none", too; kBool and kMaybeText may stand without a
/// value.
enum class Unused { kBool, kNumber, kText, kMaybeText, kList };
struct UnusedFlag {
  const char* name;
  Unused type;
  const char* why;
};

/// A flag that is known and refused, unless what it says is off (false, 0, none, empty) or `harmless`. `why` ends with
/// the remedy. A name that ends with * stands for all flags that begin so.
struct RefusedFlag {
  const char* name;
  Unused type;
  const char* why;
  const char* harmless = "";
};

/// Another flag, and which of its values (as the help shows them) matter; kSet: any that is not empty, 0, negative,
/// false, no or none. Of a list one word is enough.
inline constexpr const char* kSet = "*";
struct Need {
  std::string flag;
  std::vector<std::string> values;
};

class Option {
 public:
  enum class Effect { kWorks, kNone, kRefused };

  /// Allowed texts (exact); for a list, of each word.
  Option& choices(std::vector<std::string> allowed);
  /// What help and completion offer. Any text is taken: who reads the option says what is wrong with it.
  Option& known_values(std::vector<std::string> values);
  /// parse() throws unless the option is given.
  Option& required();
  /// A word (in any case) that stands for a value: "none" for "0".
  Option& reads(std::string word, std::string as_value);
  /// Of a list: given several times, the words add up.
  Option& repeats();
  /// What the help text shows for the value, "FILE" for example.
  Option& placeholder(std::string text);

  // Where a flag that the user gave changes nothing, OptionTable::notes() says so.
  /// It counts only where one of these holds.
  Option& only_with(std::vector<Need> any);
  /// It does not count where this holds.
  Option& idle_with(Need obstacle);
  /// Giving it sets `flag` to `value`, unless that is given, too; it counts only with this value.
  Option& implies(std::string flag, std::string value);
  /// It never counts; its value is checked all the same.
  Option& without_effect(std::string why);

  const std::vector<std::string>& names() const { return names_; }
  Effect effect() const { return effect_; }
  const std::string& group() const { return group_; }
  bool positional() const { return positional_; }

 private:
  friend class OptionTable;
  std::vector<std::string> names_;  // as typed, "--learning_rate"
  std::string help_, group_, default_;
  Binding binding_;
  std::vector<std::string> choices_;
  bool takes_others_ = false;  // than choices_
  bool required_ = false;
  bool positional_ = false;
  bool takes_rest_ = false;
  bool repeats_ = false;
  bool given_ = false;
  Effect effect_ = Effect::kWorks;
  std::string harmless_;                  // value of a refused flag
  std::vector<std::vector<Need>> needs_;  // of each list one must hold
  std::vector<Need> obstacles_;
  std::vector<std::pair<std::string, std::string>> implied_;
};

class OptionTable {
 public:
  /// `command` as the user types it.
  OptionTable(std::string command, std::string summary);

  /// The target's value at this moment is the default that the help shows. Targets: string, int, int64_t, double, bool,
  /// vector<string>, and optionals of these. Target and returned reference live as long as the caller keeps target and
  /// table.
  template <class T>
  Option& add(T* target, std::vector<std::string> names, std::string help, std::string group = "Options") {
    return add_binding(bind(target), std::move(names), std::move(help), std::move(group));
  }
  /// An enumeration, by name in any case or by number (the first is 1).
  template <class E>
  Option& add_enum(E* target, std::vector<std::pair<std::string, E>> values, std::vector<std::string> names,
                   std::string help, std::string group = "Options") {
    return add_binding(bind_names(target, std::move(values)), std::move(names), std::move(help), std::move(group));
  }

  /// A flag that is understood and changes nothing; `why` says so in the help. Its value is checked all the same.
  Option& add_without_effect(const UnusedFlag& flag);
  Option& add_refused(const RefusedFlag& flag);

  /// Arguments without dashes, in the order of these calls, required unless the target is an optional.
  Option& positional(std::string* target, const std::string& name, std::string help);
  Option& positional(std::optional<std::string>* target, const std::string& name, std::string help);
  /// One or more, up to the end; flags may stand between them.
  Option& positional(std::vector<std::string>* target, const std::string& name, std::string help);
  /// Everything from the first argument that is no flag, unparsed (a command that starts other commands). Also after
  /// `--`.
  Option& rest(std::vector<std::string>* target, const std::string& name, std::string help);

  /// Assigns all targets that it can. A problem names the flag, the value and what was expected; for an unknown flag
  /// also the nearest known one. kHelp at -h, --help or --help=json: then nothing is assigned.
  [[nodiscard]] ParseResult parse(const std::vector<std::string>& args, Problems& problems);
  /// The same for tables without further checks: ConfigError with all problems.
  [[nodiscard]] ParseResult parse(const std::vector<std::string>& args);

  /// Assigns one option by its name (with or without dashes) from text; `where` begins the message of a failure
  /// ("file.yaml:3: "). False where no such option exists.
  [[nodiscard]] bool assign(const std::string& name, const Node& value, const std::string& where);

  /// Of another command's words those that are flags of this table, by names (without dashes) that `wanted` takes, with
  /// their values; the others stay in `words`. ConfigError for a flag without its value.
  std::vector<std::string> take_flags(std::vector<std::string>& words,
                                      const std::function<bool(const std::string& name)>& wanted) const;
  /// Unknown keys of files of flags that are somebody else's are no problem.
  void pass_over_in_files(std::function<bool(const std::string& key)> is_of_others);

  bool given(const std::string& name) const;        ///< by flag or file
  std::string text(const std::string& name) const;  ///< the present value, as the help would show it
  std::vector<std::string> names() const;           ///< every spelling, with dashes
  const std::deque<Option>& options() const { return options_; }
  /// By one of its names, with or without dashes; null: there is none.
  const Option* find(const std::string& name) const;

  /// "--x has no effect ...", for what was given in vain. After the checks, which may still change targets.
  std::vector<std::string> notes() const;

  const std::string& command() const { return command_; }
  /// What was given, by flag or file: first names without dashes, and values as the help would show them. Not of flags
  /// without effect.
  std::vector<std::pair<std::string, std::string>> given_values() const;

  /// A command line that shows the command at work, for the help text: without "tessera COMMAND".
  OptionTable& example(std::string arguments);

  /// Usage, then the options by group with their defaults. After parse() of --help=json the same for programs: an
  /// object with "command", "summary", "usage", "example" and "options", each with "names", "group", "help", "value",
  /// "choices", "default", "effect".
  std::string help() const;

 private:
  struct Assignment;
  struct Scan;

  Option& add_binding(Binding binding, std::vector<std::string> names, std::string help, std::string group);
  Option& add_positional(Binding binding, const std::string& name, std::string help);
  Option& add_unused(const char* name, Unused type, const char* why, const char* group);
  Option* find(const std::string& name);
  bool has_positionals() const;
  std::vector<std::string> names_that_work() const;
  void scan_flag(Scan& scan);
  static void remember(Scan& scan, Option& option, std::vector<std::string> words, const std::string& flag);
  void scan_unknown(Scan& scan, const std::string& flag);
  /// Ends a message about flags.
  std::string where_to_look() const;
  void scan_config(Scan& scan, const std::string& word) const;
  void skip_values(Scan& scan) const;
  void scan_positional(Scan& scan);
  void read_file(const std::string& path, Problems& problems);
  std::vector<std::string> take_values(Scan& scan, const Option& option, const std::string& flag) const;
  void set(Option& option, const std::vector<std::string>& words, const std::string& where, const std::string& flag);
  static bool is_refused(const Option& option, const std::vector<std::string>& words);
  void imply();
  bool holds(const Need& need) const;
  std::string why_idle(const Option& option) const;
  void check_required(Problems& problems) const;
  std::string usage() const;
  static std::string shown_group(const Option& option);
  std::vector<const Option*> options_of(const std::string& group) const;
  std::string json_help() const;

  std::string command_, summary_, example_;
  bool json_help_ = false;
  std::function<bool(const std::string&)> is_of_others_;
  std::deque<Option> options_;                                            // a deque: references stay valid
  std::unordered_map<std::string, std::size_t> by_name_;                  // without dashes: which of options_
  std::vector<std::pair<std::string, std::size_t>> by_first_characters_;  // of names that end with a star
};

}  // namespace tessera::config
