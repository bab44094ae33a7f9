// Files that are not what they should be: whatever is in them, the error names the file, in this program's words.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "support/odd_files.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

const std::string kData = TESSERA_TEST_DATA;

struct Read {
  const char* name;
  const char* from;  // a folder of tests/data whose files stand beside it
  const char* file;  // the one that is odd
  std::vector<const char*> without;
  Arguments command;  // FOLDER stands for where they are
  const char* valid;  // a key that belongs there, which gets values of every kind
};

void PrintTo(const Read& read, std::ostream* out) {
  *out << read.name;
}

class OddFiles : public testing::TestWithParam<Read> {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (const auto& entry : fs::directory_iterator(kData + "/" + GetParam().from))
      if (entry.is_regular_file()) fs::copy_file(entry.path(), folder_ / entry.path().filename());
    for (const char* name : GetParam().without) fs::remove(folder_ / name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// The exit code and what is printed.
  std::pair<int, std::string> run_with(const std::string& content) {
    std::ofstream(folder_ / GetParam().file, std::ios::binary) << content;
    Arguments arguments = GetParam().command;
    for (auto& argument : arguments)
      if (const auto at = argument.find("FOLDER"); at != std::string::npos) argument.replace(at, 6, folder_.string());
    std::istringstream rows("\"a text\"\n");
    std::ostringstream out, err;
    auto* before = std::cin.rdbuf(rows.rdbuf());
    const int code = run_guarded([&] { return run(arguments, out, err); }, err);
    std::cin.rdbuf(before);
    return {code, err.str()};
  }

  fs::path folder_ = testing::TempDir() + "odd_files_" + std::to_string(::getpid());
};

TEST_P(OddFiles, AreNamedInPlainWords) {
  for (const std::string& content : test::odd_contents(GetParam().valid)) {
    SCOPED_TRACE(content.substr(0, 60));
    const auto [code, text] = run_with(content);
    if (code == 0) continue;  // harmless
    // Of a file that is well-formed the error may name its folder, or what it refers to there.
    const bool well_formed = test::is_well_formed(content, GetParam().valid);
    test::expect_plain_error(code, text, well_formed ? folder_.string() : GetParam().file);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OddFiles,
    testing::Values(Read{"Tokenizer",
                         "tokenizers/reference/gpt2",
                         "tokenizer.json",
                         {},
                         {"tokenize", "--tokenizer", "FOLDER"},
                         "model"},
                    Read{"AddedTokens",
                         "tokenizers/reference/gpt2",
                         "tokenizer.json",
                         {},
                         {"tokenize", "--tokenizer", "FOLDER"},
                         "added_tokens"},
                    Read{"TokenizerConfig",
                         "tiny_chat",
                         "tokenizer_config.json",
                         {},
                         {"tokenize", "--tokenizer", "FOLDER"},
                         "added_tokens_decoder"},
                    Read{"TokenizerClass",
                         "tiny_chat",
                         "tokenizer_config.json",
                         {},
                         {"tokenize", "--tokenizer", "FOLDER"},
                         "tokenizer_class"},
                    Read{"SpecialTokens",
                         "tiny_chat",
                         "special_tokens_map.json",
                         {"tokenizer_config.json"},
                         {"tokenize", "--tokenizer", "FOLDER"},
                         "bos_token"},
                    Read{"Vocabulary",
                         "tiny_chat",
                         "vocab.json",
                         {"tokenizer.json", "tokenizer_config.json"},
                         {"tokenize", "--tokenizer", "FOLDER/vocab.json"},
                         "a"},
                    Read{"WordPieces",
                         "tiny_chat",
                         "vocab.txt",
                         {"tokenizer.json", "tokenizer_config.json"},
                         {"tokenize", "--tokenizer", "FOLDER/vocab.txt"},
                         "a"},
                    Read{"SentencePieces",
                         "tiny_chat",
                         "tokenizer.model",
                         {"tokenizer.json", "tokenizer_config.json"},
                         {"tokenize", "--tokenizer", "FOLDER/tokenizer.model"},
                         "a"},
                    Read{"ModelConfig",
                         "fsdp_runs/base_llama",
                         "config.json",
                         {"model.safetensors"},
                         {"estimate", "FOLDER"},
                         "hidden_size"},
                    Read{"Weights", "fsdp_runs/base_llama", "model.safetensors", {}, {"estimate", "FOLDER"}, "a"},
                    Read{"WeightIndex",
                         "fsdp_runs/base_llama",
                         "model.safetensors.index.json",
                         {"model.safetensors"},
                         {"estimate", "FOLDER"},
                         "weight_map"},
                    Read{"Yaml",
                         "tiny_chat",
                         "odd.yaml",
                         {},
                         {"launch", "--config_file", "FOLDER/odd.yaml", "true"},
                         "num_processes"},
                    Read{"Json",
                         "tiny_chat",
                         "odd.json",
                         {},
                         {"launch", "--config_file", "FOLDER/odd.json", "true"},
                         "fsdp_config"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::cli
