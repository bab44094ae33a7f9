// Which files of a model's folder are what.
#include "formats/model_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST(FolderFiles, AreKnownByTheirNames) {
  const auto are = [](FolderFile kind, std::initializer_list<const char*> names) {
    for (const char* name : names) EXPECT_EQ(folder_file(name), kind) << name;
  };
  are(FolderFile::kConfig, {"config.json", "adapter_config.json"});
  are(FolderFile::kModel,
      {"generation_config.json", "modeling_own.py", "LICENSE", "LICENSE.txt", "NOTICE", "USE_POLICY.md"});
  are(FolderFile::kTokenizer,
      {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "merges.txt", "spiece.model",
       "tokenizer.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json", "bpe.codes",
       "vocab.tiktoken", "additional_chat_templates/tool_use.jinja"});
  are(FolderFile::kOther,
      {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "README.md", "trainer_state.json",
       "eval_results.json", "predict_results.txt", "generated_predictions.txt", "manifest.json", "run.json",
       "state.json", ".gitattributes", ".hidden.json", "train.jsonl", "optimizer.pt", "onnx/config.json",
       "additional_chat_templates/README.md", "original/tokenizer.model"});
}

TEST(FolderFiles, ATokenizerIsOpenedFromTheFirstFormThatIsWhole) {
  const test::TempFolder folder("model_folder");
  const fs::path root(folder.path());
  const auto found = [&](TokenizerForms forms = TokenizerForms::kAll) {
    return find_tokenizer_file(root, forms).value_or("none").filename();
  };
  std::ofstream(root / "vocab.json") << "x";
  EXPECT_EQ(found(), "none") << "merges.txt is missing";
  std::ofstream(root / "vocab.txt") << "x";
  EXPECT_EQ(found(), "vocab.txt");
  std::ofstream(root / "merges.txt") << "x";
  EXPECT_EQ(found(), "vocab.json");
  for (const char* name : {"spm.model", "sentencepiece.bpe.model", "tokenizer.model", "spiece.model"}) {
    std::ofstream(root / name) << "x";
    EXPECT_EQ(found(), name);
  }
  std::ofstream(root / "tokenizer.json") << "x";
  EXPECT_EQ(found(), "tokenizer.json");
  EXPECT_EQ(found(TokenizerForms::kSources), "spiece.model");
  EXPECT_EQ(tokenizer_file_names(TokenizerForms::kSources),
            "spiece.model, tokenizer.model, sentencepiece.bpe.model, spm.model, vocab.json with merges.txt, vocab.txt");
}

TEST(FolderFiles, TemplatesAreRemovedAndNothingElse) {
  const test::TempFolder folder("model_folder");
  const fs::path root(folder.path());
  fs::create_directories(root / kNamedTemplates);
  for (const char* name :
       {"chat_template.jinja", "additional_chat_templates/rag.jinja", "chat_template.json", "own.jinja"})
    std::ofstream(root / name) << "x";
  remove_template_files(root);
  EXPECT_FALSE(fs::exists(root / kTemplateFile));
  EXPECT_FALSE(fs::exists(root / kNamedTemplates));
  EXPECT_TRUE(fs::exists(root / kProcessorTemplate));
  EXPECT_TRUE(fs::exists(root / "own.jinja"));
}

}  // namespace
}  // namespace tessera
