// Damaged tokenizer files: every prefix, every flipped byte ends in an error or a tokenizer, never in anything else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "tessera/base/error.h"
#include "text/normalizer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

class Damaged : public testing::Test {
 protected:
  Damaged() : folder_(fs::temp_directory_path() / ("tessera_tok_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~Damaged() override { fs::remove_all(folder_); }
  std::string message(const std::string& name, const std::string& content) {
    write_file_atomically((folder_ / name).string(), content);
    try {
      open_tokenizer((folder_ / name).string());
    } catch (const DataError& e) {
      return e.what();
    }
    return "accepted";
  }
  fs::path folder_;
};

TEST_F(Damaged, SentencePieceFilesNameTheByte) {
  const auto good = read_file(std::string(TESSERA_TEST_DATA) + "/tokenizers/t5_spiece.model");
  EXPECT_NE(message("spiece.model", good.substr(0, 1001)).find("at byte"), std::string::npos);
  EXPECT_NE(message("spiece.model", "").find("no pieces"), std::string::npos);
  EXPECT_NE(message("spiece.model", "{\"a\": 1}").find("not a SentencePiece model"), std::string::npos);
  EXPECT_NE(message("spiece.model", std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11)).find("are left"),
            std::string::npos);
  EXPECT_NE(message("spiece.model", std::string("\x0a\x03\x0a\x01\xff", 5)).find("not UTF-8"), std::string::npos);
}

// As in a download that was cut, or a cache that was copied without what its links lead to.
TEST_F(Damaged, ALinkThatLeadsNowhereIsNotAFileThatIsNotThere) {
  write_file_atomically((folder_ / "vocab.txt").string(), "[UNK]\n[CLS]\n[SEP]\na\n");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    fs::create_symlink(folder_ / "blob", folder_ / name);
    try {
      open_tokenizer(folder_.string());
      ADD_FAILURE() << name << " was taken for absent";
    } catch (const DataError& e) {
      EXPECT_NE(std::string(e.what()).find(std::string(name) + "': it is a link to"), std::string::npos) << e.what();
    }
    fs::remove(folder_ / name);
  }
  EXPECT_NO_THROW(open_tokenizer(folder_.string()));
}

TEST_F(Damaged, JsonFilesNameTheKey) {
  EXPECT_NE(message("tokenizer.json", "").find("expected a JSON object"), std::string::npos);
  EXPECT_NE(message("tokenizer.json", "{}").find("expected a key \"model\""), std::string::npos);
  EXPECT_NE(
      message("tokenizer.json", R"({"model":{"type":"Unigram","vocab":[]}})").find("model: the vocabulary is empty"),
      std::string::npos);
  EXPECT_NE(
      message("tokenizer.json", R"({"model":{"type":"Unigram","vocab":[["a",0]],"unk_id":1}})").find("model.unk_id"),
      std::string::npos);
  EXPECT_NE(message("tokenizer.json", R"({"added_tokens":[{"id":-1,"content":"x"}],"model":{"vocab":[["a",0]]}})")
                .find("added_tokens[0].id"),
            std::string::npos);
  EXPECT_EQ(message("tokenizer.json", R"({"model":{"type":"Unigram","vocab":[["a",0]],"unk_id":0}})"), "accepted");
  std::string deep(100000, '[');
  EXPECT_NE(message("tokenizer.json", deep).find("JSON"), std::string::npos);
}

TEST_F(Damaged, FoldersWithoutATokenizerListWhatWasLookedFor) {
  try {
    open_tokenizer(folder_.string());
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("tokenizer.json, spiece.model, tokenizer.model"), std::string::npos);
  }
  EXPECT_THROW(open_tokenizer((folder_ / "none").string()), DataError);
}

TEST(Precompiled, DamagedMapsAreRefusedOrHarmless) {
  EXPECT_THROW(make_precompiled("", "m"), DataError);
  EXPECT_THROW(make_precompiled(std::string("\x08\0\0\0abcd", 8), "m"), DataError);
  EXPECT_THROW(make_precompiled(std::string("\x03\0\0\0abcdefgh", 12), "m"), DataError);
  // Offsets that leave the trie and values that leave the texts are misses.
  std::string wild("\x08\0\0\0", 4);
  const std::uint32_t units[2] = {0xFFFFFC00u, 0x7FFFFFFFu};
  wild.append(reinterpret_cast<const char*>(units), 8);
  const auto normalizer = make_precompiled(wild, "m");
  auto text = align("any text");
  normalizer->normalize(text, 0);
  EXPECT_EQ(to_utf8(text.data(), text.data() + text.size()), "any text");
}

// Forty times twice as long: a file of some kilobytes must not fill the memory.
TEST(Growth, OfNormalizersAndDecodersHasALimit) {
  const auto json = [](const std::string& more) {
    return R"({"model":{"type":"WordLevel","vocab":{"a":0,"[U]":1},"unk_token":"[U]"},)" + more + "}";
  };
  const auto forty = [](const std::string& part) {
    std::string out = "[" + part;
    for (int i = 1; i < 40; ++i) out += "," + part;
    return out + "]";
  };
  const std::string twice = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})",
                    by_regex = R"({"type":"Replace","pattern":{"Regex":"a"},"content":"aa"})";
  const auto file = (fs::temp_directory_path() / ("tessera_growth_" + std::to_string(::getpid()) + ".json")).string();
  const auto message = [&](const std::string& more) -> std::string {
    write_file_atomically(file, json(more));
    try {
      const auto tokenizer = open_tokenizer(file);
      return tokenizer->decode(tokenizer->encode("a\xC3\xA9").ids) + tokenizer->decode({0});
    } catch (const DataError& e) {
      return e.what();
    }
  };
  for (const std::string& part : {twice, by_regex, std::string(R"({"type":"ByteLevel"})")})
    EXPECT_NE(
        message(R"("normalizer":{"type":"Sequence","normalizers":)" + forty(part) + "}").find("the tokenizer makes"),
        std::string::npos)
        << part;
  const std::string bytes = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})";
  EXPECT_NE(message(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":)" + forty(bytes) + "}")
                .find("the tokenizer makes"),
            std::string::npos);
  for (const std::string& part : {twice, by_regex})
    EXPECT_NE(message(R"("decoder":{"type":"Sequence","decoders":)" + forty(part) + "}").find("'s decoder makes"),
              std::string::npos)
        << part;
  std::string parts;
  for (int i = 0; i < 300; ++i) parts += std::string(i > 0 ? "," : "") + R"({"Sequence":{"id":"A","type_id":0}})";
  EXPECT_NE(message(R"("post_processor":{"type":"TemplateProcessing","single":[)" + parts + R"(],"pair":[]})")
                .find("300 parts; at most 256 are taken"),
            std::string::npos);
  fs::remove(file);
}

}  // namespace
}  // namespace tessera::text
