#include "worker/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ostream>

#include "config/options.h"
#include "worker/described_commands.h"

namespace tessera::worker {
namespace {

using Commands = std::vector<DescribedCommand>;

/// What is offered: flags that do something, by their first names.
std::vector<const DescribedFlag*> offered(const DescribedCommand& command) {
  std::vector<const DescribedFlag*> flags;
  for (const DescribedFlag& flag : command.flags)
    if (flag.works && !flag.is_argument) flags.push_back(&flag);
  return flags;
}

std::vector<std::string> words_of_commands(const Commands& commands) {
  std::vector<std::string> names;
  for (const DescribedCommand& command : commands)
    if (command.name.find(' ') == std::string::npos) names.push_back(command.name);
  return names;
}

/// The first sentence, short enough for a line.
std::string brief(const std::string& help) {
  constexpr std::size_t kMost = 70;
  std::string text = help.substr(0, help.find_first_of(";\n"));
  if (text.size() > kMost) text = text.substr(0, text.rfind(' ', kMost)) + " ...";
  return text;
}

/// Within single quotes; escaped: what stands for one there.
std::string quoted(const std::string& text, const std::string& escaped) {
  std::string out;
  for (const char c : text) out += c == '\'' ? escaped : std::string(1, c);
  return out;
}

std::string fish_text(const std::string& help) {
  std::string out;
  for (const char c : brief(help)) out += c == '\\' ? "\\\\" : std::string(1, c);
  return quoted(out, "\\'");
}

/// Without the characters that _arguments and _describe read.
std::string zsh_text(const std::string& help) {
  std::string out = brief(help);
  std::erase_if(out, [](char c) { return std::string_view("[]:\\").find(c) != std::string_view::npos; });
  return quoted(out, R"('\'')");
}

std::string bash_script(const Commands& commands) {
  std::string flags, values;
  for (const DescribedCommand& command : commands) {
    std::vector<std::string> names;
    for (const DescribedFlag* flag : offered(command)) {
      names.push_back(flag->names[0]);
      if (flag->choices.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : flag->names) patterns.push_back(fmt::format("\"{} {}\"", command.name, name));
      values += fmt::format("    {}) echo \"{}\" ;;\n", fmt::join(patterns, " | "), fmt::join(flag->choices, " "));
    }
    flags += fmt::format("    \"{}\") echo \"{} --help\" ;;\n", command.name, fmt::join(names, " "));
  }
  return fmt::format(R"sh(# bash completion for tessera: source it, or save it as
# ~/.local/share/bash-completion/completions/tessera
_tessera_flags() {{
    case "$1" in
{}    esac
}}
_tessera_values() {{
    case "$1" in
{}    esac
}}
_tessera() {{
    local commands="{}" current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$command $word" in
            "config default" | "config update") command="$command $word" ;;
            " "[a-z]* | "launch "[a-z]*) [[ " $commands " == *" $word "* ]] && command=$word ;;
        esac
    done
    COMPREPLY=()
    if [[ -z $command ]]; then
        COMPREPLY=($(compgen -W "$commands --help --version" -- "$current"))
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$(_tessera_flags "$command")" -- "$current"))
    elif [[ $before == --* && -n $(_tessera_values "$command $before") ]]; then
        COMPREPLY=($(compgen -W "$(_tessera_values "$command $before")" -- "$current"))
    elif [[ $command == launch && $before != --* ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$current"))
    elif [[ $command == config && $COMP_CWORD == 2 ]]; then
        COMPREPLY=($(compgen -W "default update" -- "$current"))
    fi
}}
complete -o default -F _tessera tessera
)sh",
                     flags, values, fmt::join(words_of_commands(commands), " "));
}

/// A function for each command, whose flags take files unless their choices are known.
std::string zsh_script(const Commands& commands) {
  std::string out =
      "#compdef tessera\n# zsh completion for tessera: save it as _tessera in a folder of $fpath, or source it\n";
  std::string cases;
  for (const DescribedCommand& command : commands) {
    if (command.name.find(' ') != std::string::npos) continue;
    std::string arguments;
    for (const DescribedFlag* flag : offered(command)) {
      const std::string values = flag->choices.empty() ? "_files" : fmt::format("({})", fmt::join(flag->choices, " "));
      arguments += fmt::format(" \\\n            '{}[{}]:value:{}'", flag->names[0], zsh_text(flag->help), values);
    }
    const char* rest = command.name == "launch" ? "'*::task:_tessera_command'" : "'*:file:_files'";
    cases += fmt::format("        {}) _arguments{} \\\n            '--help[list the flags]' {} ;;\n", command.name,
                         arguments, rest);
  }
  std::string names;
  for (const DescribedCommand& command : commands)
    if (command.name.find(' ') == std::string::npos)
      names += fmt::format("        '{}:{}'\n", command.name, zsh_text(command.help));
  return out + fmt::format(R"sh(# The words are a command and what belongs to it.
_tessera_command() {{
    local -a commands
    commands=(
{}    )
    local context state line
    if (( CURRENT == 1 )); then
        _describe command commands
        return
    fi
    case "$words[1]" in
{}    esac
}}
_tessera() {{
    shift words
    (( CURRENT-- ))
    _tessera_command
}}
if [[ $funcstack[1] == _tessera ]]; then
    _tessera "$@"
else
    compdef _tessera tessera  # of a script that is sourced
fi
)sh",
                           names, cases);
}

std::string fish_script(const Commands& commands) {
  std::string out = "# fish completion for tessera: save it as ~/.config/fish/completions/tessera.fish\n";
  const auto names = words_of_commands(commands);
  for (const DescribedCommand& command : commands) {
    if (command.name.find(' ') != std::string::npos) continue;
    out += fmt::format("complete -c tessera -n \"not __fish_seen_subcommand_from {}\" -f -a {} -d '{}'\n",
                       fmt::join(names, " "), command.name, fish_text(command.help));
  }
  for (const DescribedCommand& command : commands) {
    if (command.name.find(' ') != std::string::npos) continue;
    for (const DescribedFlag* flag : offered(command)) {
      const std::string values =
          flag->choices.empty() ? "-r" : fmt::format("-x -a '{}'", fmt::join(flag->choices, " "));
      out += fmt::format("complete -c tessera -n \"__fish_seen_subcommand_from {}\" -l {} {} -d '{}'\n", command.name,
                         flag->names[0].substr(flag->names[0].find_first_not_of('-')), values, fish_text(flag->help));
    }
  }
  return out;
}

}  // namespace

int completion(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string shell;
  config::OptionTable table("tessera completion",
                            "prints a script that completes commands, flags and values in a shell");
  table.positional(&shell, "SHELL", "bash, zsh or fish").choices({"bash", "zsh", "fish"});
  table.example("bash > ~/.local/share/bash-completion/completions/tessera");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const Commands commands = described_commands();
  out << (shell == "bash" ? bash_script(commands) : shell == "zsh" ? zsh_script(commands) : fish_script(commands));
  return 0;
}

}  // namespace tessera::worker
