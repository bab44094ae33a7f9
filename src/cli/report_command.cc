#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "base/folder_names.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/options.h"
#include "report/live_report.h"
#include "report/page.h"
#include "tessera/base/error.h"

namespace tessera::cli {

int report_command(const Arguments& args, std::ostream& out, std::ostream&) {
  std::vector<std::string> folders;
  std::string output;
  config::OptionTable table(
      "tessera report",
      "shows runs as one HTML file that loads nothing: losses, rates, norms, tokens a second, memory, "
      "time, answers and settings; several runs over each other");
  table.positional(&folders, "DIR", "output_dir of a run, of tessera or of transformers' Trainer");
  table
      .add(&output, {"--output", "-o"},
           "file to write (default: report.html in DIR; of several runs in the present folder)")
      .placeholder("FILE");
  table.example("out/lora out/dora --output compared.html");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  std::vector<report::RunRecord> runs;
  for (std::string& folder : folders) {
    folder = without_end_slashes(std::move(folder));
    runs.push_back(report::read_run(folder, folder));
  }
  if (output.empty()) output = report::report_path(runs.size() == 1 ? folders[0] : ".");
  const std::string parent = std::filesystem::path(output).parent_path().string();
  if (!parent.empty()) ensure_writable_folder(parent);
  write_file_atomically(output, report::html_page(runs));
  out << "report written to " << output << "\n";
  return kSuccess;
}

}  // namespace tessera::cli
