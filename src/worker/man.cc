// Manual pages in roff, one for the program and one for each command.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ostream>

#include "base/file.h"
#include "base/open_file.h"
#include "config/options.h"
#include "tessera/base/error.h"
#include "worker/completion.h"
#include "worker/described_commands.h"

namespace tessera::worker {
namespace {

/// Text as roff prints it: no escapes, no requests at a line's begin, minus signs that can be copied.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c == '\n' ? ' ' : c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string page_name(const DescribedCommand& command) {
  std::string name = "tessera-" + command.name;
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string header(const std::string& name, const std::string& what) {
  return fmt::format(".TH \"{}\" 1 \"\" \"tessera\" \"tessera\"\n.SH NAME\n{} \\- {}\n", name, roff(name), roff(what));
}

std::string flag_entry(const DescribedFlag& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back("\\fB" + roff(name) + "\\fR");
  std::string out = fmt::format(".TP\n{}{}\n{}", fmt::join(names, ", "),
                                flag.value.empty() ? "" : " \\fI" + roff(flag.value) + "\\fR", roff(flag.help));
  if (!flag.choices.empty() && flag.choices != std::vector<std::string>{"true", "false"})
    out += fmt::format(": {}", roff(fmt::format("{}", fmt::join(flag.choices, ", "))));
  if (flag.is_required && !flag.is_argument) out += " (required)";
  if (!flag.default_value.empty()) out += " (default: " + roff(flag.default_value) + ")";
  return out + "\n";
}

/// In the order of the help text: what works by group, then what does not.
std::string flag_sections(const DescribedCommand& command) {
  std::vector<std::string> groups;
  for (const bool works : {true, false})
    for (const DescribedFlag& flag : command.flags)
      if (flag.works == works && std::find(groups.begin(), groups.end(), flag.group) == groups.end())
        groups.push_back(flag.group);
  std::string out = groups.empty() ? "" : ".SH OPTIONS\n";
  for (const std::string& group : groups) {
    out += ".SS \"" + roff(group) + "\"\n";
    for (const DescribedFlag& flag : command.flags)
      if (flag.group == group) out += flag_entry(flag);
  }
  return out;
}

std::string command_page(const DescribedCommand& command) {
  std::string out = header(page_name(command), command.help);
  out += ".SH SYNOPSIS\n.B " + roff(command.usage) + "\n.SH DESCRIPTION\n" + roff(command.summary) + "\n";
  out += flag_sections(command);
  if (!command.example.empty())
    out += fmt::format(".SH EXAMPLE\n.nf\ntessera {} {}\n.fi\n", roff(command.name), roff(command.example));
  return out + ".SH SEE ALSO\n.BR tessera (1)\n";
}

std::string program_page(const std::vector<DescribedCommand>& commands) {
  std::string out = header("tessera", "fully sharded fine-tuning of Transformers");
  out +=
      ".SH SYNOPSIS\n.B tessera \\fICOMMAND\\fR [flags]\n.br\n.B tessera launch\n[flags] \\fITASK\\fR|\\fIPROGRAM\\fR "
      "[its flags]\n";
  out += ".SH COMMANDS\n";
  for (const DescribedCommand& command : commands)
    out += fmt::format(".TP\n.BR {} (1)\n{}\n", roff(page_name(command)), roff(command.help));
  out += ".SH EXIT STATUS\n";
  const std::pair<const char*, const char*> codes[] = {
      {"0", "all went well"},
      {"1", "a check that the command makes did not hold"},
      {"2", "flags or config files are wrong"},
      {"3", "data, weight or tokenizer files are wrong"},
      {"4", "a folder could not be written or read back"},
      {"5", "a rank was lost, or ranks waited too long"},
      {"70", "a defect of tessera"},
      {"71", "out of memory"},
      {"128 + N", "ended by signal N; of a launch, the code of the rank that failed first"}};
  for (const auto& [code, meaning] : codes) out += fmt::format(".TP\n.B {}\n{}\n", code, meaning);
  return out;
}

}  // namespace

int man(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string folder;
  config::OptionTable table("tessera man", "writes manual pages: tessera.1, and one for each command");
  table.positional(&folder, "DIR", "folder for the pages; MANPATH has its parent, where it is called man1");
  table.example("~/.local/share/man/man1");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  const auto commands = described_commands();
  for (const DescribedCommand& command : commands) {
    if (command.name == folder && !is_there(folder))
      throw ConfigError(
          fmt::format("DIR is the folder that pages are written into; 'tessera help {0}' shows the flags of "
                      "{0}, and './{0}' names a folder",
                      folder),
          "DIR");
  }
  ensure_writable_folder(folder);
  write_file_atomically(folder + "/tessera.1", program_page(commands));
  for (const DescribedCommand& command : commands)
    write_file_atomically(folder + "/" + page_name(command) + ".1", command_page(command));
  out << fmt::format("{} pages written to {}\n", commands.size() + 1, folder);
  return 0;
}

}  // namespace tessera::worker
