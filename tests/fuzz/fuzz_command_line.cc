// Words, parted by zero bytes, as the command line of a command that has an option of every kind, and of `launch`; the
// part behind the first 0xFF byte is a file of flags. ConfigError with all problems, or values that the help shows. The
// mutator changes words, and puts in flags and values that there are.
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "config/options.h"
#include "fuzz/mutate.h"
#include "fuzz/temporary_file.h"
#include "launch/launch.h"
#include "tessera/base/error.h"

namespace {

using namespace tessera;

enum class Shape { kLinear, kCosine };

/// What parse() fills in.
struct Values {
  std::string text = "a", needed;
  int small = 3;
  std::int64_t large = 1;
  double number = 1e-4;
  bool flag = false, other = true;
  std::vector<std::string> words, many, files;
  std::optional<double> maybe;
  std::optional<std::string> name;
  Shape shape = Shape::kLinear;
};

config::OptionTable table_of(Values& v) {
  config::OptionTable table("tessera fuzz", "has an option of every kind");
  table.positional(&v.files, "FILE", "files");
  table.add(&v.text, {"--text"}, "a text").choices({"a", "b"});
  table.add(&v.needed, {"--needed", "-n"}, "a text").required();
  table.add(&v.small, {"--small"}, "a number").reads("none", "0");
  table.add(&v.large, {"--large"}, "a number").only_with({{"--flag", {config::kSet}}});
  table.add(&v.number, {"--number", "--lr"}, "a number").idle_with({"--flag", {"true"}});
  table.add(&v.flag, {"--flag"}, "a switch");
  table.add(&v.other, {"--other"}, "a switch").implies("flag", "true");
  table.add(&v.words, {"--words"}, "a list").choices({"x", "y", "z"});
  table.add(&v.many, {"--many"}, "a list").repeats();
  table.add(&v.maybe, {"--maybe"}, "a number or none");
  table.add(&v.name, {"--name"}, "a text or none").without_effect("there is none");
  table.add_enum(&v.shape, {{"LINEAR", Shape::kLinear}, {"COSINE", Shape::kCosine}}, {"--shape"}, "one of two");
  table.add_without_effect({"--unused", config::Unused::kNumber, "it is not needed"});
  table.add_refused({"--refused_*", config::Unused::kText, "it is not there; leave it out"});
  return table;
}

void parse(const std::vector<std::string>& words) {
  Values values;
  auto table = table_of(values);
  try {
    if (table.parse(words) == config::ParseResult::kHelp && table.help().empty()) __builtin_trap();
    (void)table.notes();
    (void)table.given_values();
  } catch (const ConfigError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  ::clearenv();  // files of flags set variables
  std::string_view line(reinterpret_cast<const char*>(data), size);
  std::string_view flags = line;
  line = fuzz::next_part(flags, '\xFF');
  std::vector<std::string> words;
  while (!line.empty()) words.emplace_back(fuzz::next_part(line, '\0'));
  if (!flags.empty()) words.push_back(folder.write(flags[0] == '{' ? "flags.json" : "flags.yaml", flags));
  parse(words);
  // Files that the words name are of the machine's, and read.
  const auto names_file = [](const std::string& word) { return word.find('/') != std::string::npos; };
  if (std::any_of(words.begin(), words.end(), names_file)) return 0;
  launch::LaunchOptions options;
  config::AccelerateInput accelerate;
  try {
    if (launch::launch_table(options, accelerate).parse(words) == config::ParseResult::kHelp) return 0;
    std::vector<std::string> warnings;
    (void)config::resolve(accelerate, "fuzz", true, warnings);
  } catch (const ConfigError&) {
  }
  return 0;
}

namespace {

/// The flags that help names, and values of each kind.
const std::vector<std::string>& known_words() {
  static const auto words = [] {
    std::vector<std::string> out{"true", "no",  "none", "a", "x",    "x,y", "7",  "-1",         "1e-4", "LINEAR",
                                 "nan",  "4GB", "--",   "=", "help", "-n",  "-h", "flags.json", "FSDP", "1"};
    Values values;
    launch::LaunchOptions options;
    config::AccelerateInput accelerate;
    std::istringstream help(table_of(values).help() + launch::launch_table(options, accelerate).help());
    for (std::string word; help >> word;) {
      word.resize(std::min(word.find_first_of(",;:=)"), word.size()));
      if (word.starts_with("--")) out.push_back(word);
    }
    return out;
  }();
  return words;
}

std::optional<std::string> changed_line(std::string_view input, fuzz::Random& random) {
  std::string_view rest = input, line = fuzz::next_part(rest, '\xFF');
  const bool has_file = line.size() < input.size();
  std::string file(rest);
  if (has_file && random.one_in(2)) {
    file = fuzz::changed_bytes(std::move(file));
  } else {
    std::vector<std::string> words;
    while (!line.empty()) words.emplace_back(fuzz::next_part(line, '\0'));
    if (words.empty() || random.one_in(4)) words.emplace_back();
    auto* word = fuzz::change_list(words, random);
    const auto& known = known_words();
    if (word != nullptr) *word = random.one_in(3) ? fuzz::changed_bytes(*word) : known[random.below(known.size())];
    std::string out;
    for (const auto& one : words) out += one + '\0';
    return has_file ? out + '\xFF' + file : out;
  }
  return std::string(line) + '\xFF' + file;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return fuzz::mutate(data, size, max_size, seed, changed_line);
}
