// Files of models, adapters, checkpoints and data that are not what they should be: whatever is in them, a task's error
// names the file, in this program's words.
#include "support/odd_files.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/temp_folder.h"
#include "worker/tasks.h"

namespace tessera::worker {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

const std::string kTinyChat = std::string(TESSERA_TEST_DATA) + "/tiny_chat";

std::pair<int, std::string> run(const Arguments& arguments) {
  std::ostringstream out, err;
  const int code = cli::run_guarded(
      [&] {
        for (const auto& task : tasks())
          if (arguments[0] == task.name) return task.function({arguments.begin() + 1, arguments.end()}, out, err);
        return int{cli::kInternalError};
      },
      err);
  return {code, err.str()};
}

struct Read {
  const char* name;
  const char* file;   // the one that is odd
  Arguments command;  // FOLDER stands for where everything is
  const char* valid;  // a key that belongs there
};

void PrintTo(const Read& read, std::ostream* out) {
  *out << read.name;
}

Arguments sft(const Arguments& more) {
  Arguments all = {"sft",
                   "--model_name_or_path",
                   "FOLDER/model",
                   "--dataset_name",
                   "FOLDER/data",
                   "--output_dir",
                   "FOLDER/out",
                   "--max_steps",
                   "1",
                   "--max_length",
                   "32",
                   "--use_peft_lora",
                   "True",
                   "--lora_r",
                   "2",
                   "--disable_tqdm",
                   "--print_model",
                   "false",
                   "--dataset_cache_dir",
                   "FOLDER/cache",
                   "--per_device_train_batch_size",
                   "1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class OddTaskFiles : public testing::TestWithParam<Read> {
 protected:
  /// A model with random weights, data, and what one step of training writes: an adapter and a checkpoint.
  static void SetUpTestSuite() {
    files_ = std::make_unique<test::TempFolder>("odd_task_files");
    ASSERT_EQ(run(placed({"init-model", kTinyChat, "FOLDER/model"})).first, 0);
    fs::create_directories(files_->path() + "/data");
    for (const char* name : {"train.jsonl", "test.jsonl"})
      fs::copy_file(kTinyChat + "/" + name, files_->path() + "/data/" + name);
    const auto [code, text] = run(placed(sft({"--save_strategy", "steps", "--save_steps", "1"})));
    ASSERT_EQ(code, 0) << text;
    std::ofstream(files_->path() + "/model/generation_config.json") << "{}";
  }
  static void TearDownTestSuite() { files_.reset(); }

  static Arguments placed(Arguments arguments) {
    for (auto& argument : arguments)
      if (argument.starts_with("FOLDER")) argument.replace(0, 6, files_->path());
    return arguments;
  }

  inline static std::unique_ptr<test::TempFolder> files_;
};

TEST_P(OddTaskFiles, AreNamedInPlainWords) {
  const fs::path file = files_->path() + "/" + GetParam().file, kept = file.string() + ".kept";
  fs::rename(file, kept);
  int refused = 0;
  for (const std::string& content : test::odd_contents(GetParam().valid)) {
    SCOPED_TRACE(content.substr(0, 60));
    std::ofstream(file, std::ios::binary) << content;
    const auto [code, text] = run(placed(GetParam().command));
    if (code == 0) continue;  // harmless
    ++refused;
    const bool well_formed = test::is_well_formed(content, GetParam().valid);
    test::expect_plain_error(code, text, well_formed ? files_->path() : file.filename().string());
  }
  EXPECT_GT(refused, 5) << "does the command read " << file << "?";
  fs::rename(kept, file);
  const auto [code, text] = run(placed(GetParam().command));
  EXPECT_EQ(code, 0) << text;  // so that the errors above come from the file alone
}

const Arguments kGenerate = {"generate", "--model", "FOLDER/model", "--prompt", "Hello", "--max_new_tokens", "1"};
const Arguments kChat = {"generate", "--model", "FOLDER/model", "--message", "Hello", "--max_new_tokens", "1"};
const Arguments kAdapter = {"generate", "--model", "FOLDER/model",     "--adapter", "FOLDER/out",
                            "--prompt", "Hello",   "--max_new_tokens", "1"};
const Arguments kResume = sft({"--resume_from_checkpoint", "FOLDER/out/checkpoint-1", "--output_dir", "FOLDER/again"});

INSTANTIATE_TEST_SUITE_P(
    All, OddTaskFiles,
    testing::Values(Read{"ModelConfig", "model/config.json", kGenerate, "hidden_size"},
                    Read{"ModelType", "model/config.json", kGenerate, "model_type"},
                    Read{"GenerationConfig", "model/generation_config.json", kGenerate, "suppress_tokens"},
                    Read{"EndTokens", "model/generation_config.json", kGenerate, "eos_token_id"},
                    Read{"Weights", "model/model.safetensors", kGenerate, "a"},
                    Read{"Tokenizer", "model/tokenizer.json", kGenerate, "model"},
                    Read{"ChatTemplate", "model/tokenizer_config.json", kChat, "chat_template"},
                    Read{"RenderedTemplate",
                         "model/tokenizer_config.json",
                         {"render", "--tokenizer", "FOLDER/model", "--input", "/dev/null"},
                         "chat_template"},
                    Read{"AdapterConfig", "out/adapter_config.json", kAdapter, "target_modules"},
                    Read{"AdapterRank", "out/adapter_config.json", kAdapter, "r"},
                    Read{"AdapterWeights", "out/adapter_model.safetensors", kAdapter, "a"},
                    Read{"Rows", "data/train.jsonl", sft({"--output_dir", "FOLDER/again", "--overwrite_output_dir"}),
                         "messages"},
                    Read{"TrainerState", "out/checkpoint-1/trainer_state.json", kResume, "global_step"},
                    Read{"Manifest", "out/checkpoint-1/manifest.json", kResume, "files"},
                    Read{"ExportedConfig",
                         "out/checkpoint-1/adapter_config.json",
                         {"export", "FOLDER/out/checkpoint-1", "FOLDER/exported", "--overwrite_output_dir"},
                         "peft_type"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::worker
