// Folders of every tokenizer class against AutoTokenizer (tests/data/tokenizers/make_classes.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/crc32.h"
#include "tessera/base/error.h"
#include "text/base64.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kFiles = fs::path(TESSERA_TEST_DATA) / "tokenizers" / "classes";

std::string joined(const std::vector<std::int32_t>& ids) {
  std::string out;
  for (const auto id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
  return out;
}

std::string pair_of(const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
  auto both = tokenizer.encode_pair(text, "x a", {.add_special_tokens = add_special_tokens});
  both.ids.insert(both.ids.end(), both.type_ids.begin(), both.type_ids.end());
  return joined(both.ids);
}

// CodeLlama's class takes a pair for the two sides of a gap, which is not followed.
std::uint32_t result(const Tokenizer& tokenizer, const std::string& text, bool has_pairs) {
  const auto e = tokenizer.encode(text);
  std::string offsets;
  for (const auto& [begin, end] : e.offsets)
    offsets += (offsets.empty() ? "" : " ") + std::to_string(begin) + "," + std::to_string(end);
  const auto all =
      joined(e.ids) + "\x1f" + offsets + "\x1f" + joined(tokenizer.encode(text, false).ids) + "\x1f" +
      (has_pairs ? pair_of(tokenizer, text, true) : "") + "\x1f" + (has_pairs ? pair_of(tokenizer, text, false) : "") +
      "\x1f" + tokenizer.decode(e.ids, DecodeOptions{}) + "\x1f" +
      tokenizer.decode(e.ids, DecodeOptions{.skip_special_tokens = true, .clean_up_tokenization_spaces = {}});
  return crc32(all.data(), all.size());
}

void write_folder(const fs::path& folder, const Json& test) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const std::string file : test["files"]) {
    const auto colon = file.find(':');
    fs::copy_file(kFiles / file.substr(0, colon), folder / file.substr(colon + 1));
  }
  if (!test["config"].is_null()) std::ofstream(folder / "tokenizer_config.json") << test["config"];
  for (const auto& [name, root] : test["others"].items()) std::ofstream(folder / name) << root;
}

// What this project does otherwise on purpose.
bool is_own_rule(const Json& test, const std::string& name) {
  if (name == "TokenizersBackend") return true;  // transformers 5 writes it, 4.57 does not know it
  const auto reason = test["refused"].get<std::string>();
  return reason.find("model type") != std::string::npos ||         // nobody names a class: tokenizer.json says all
         reason.find("str or AddedToken") != std::string::npos ||  // an object without "__type"
         reason.find("_Qwen2Tokenizer__") != std::string::npos ||  // a slip of the class
         reason.find("sacremoses") != std::string::npos;           // a package that is not needed here
}

// AutoTokenizer opens these: classes that are refused, and conversions ("converted": without tokenizer.json; those in
// both forms also when the configuration asks for the conversion).
const std::set<std::string> kRefusedHere{"AlbertTokenizer converted",
                                         "BigBirdTokenizer converted",
                                         "BlenderbotTokenizer",
                                         "BlenderbotTokenizer converted",
                                         "CLIPTokenizer converted",
                                         "DebertaTokenizer",
                                         "DebertaTokenizer converted",
                                         "FNetTokenizer converted",
                                         "FunnelTokenizer",
                                         "FunnelTokenizer converted",
                                         "MBart50Tokenizer",
                                         "MBartTokenizer",
                                         "MPNetTokenizer",
                                         "MPNetTokenizer converted",
                                         "NllbTokenizer",
                                         "OpenAIGPTTokenizer",
                                         "OpenAIGPTTokenizer converted",
                                         "PegasusTokenizer",
                                         "PegasusTokenizer converted",
                                         "ReformerTokenizer converted",
                                         "SeamlessM4TTokenizer",
                                         "WhisperTokenizer",
                                         "WhisperTokenizer converted",
                                         "XGLMTokenizer",
                                         "XLNetTokenizer converted"};

TEST(TokenizerClasses, EqualAutoTokenizerOrAreRefused) {
  const auto file = Json::parse(std::ifstream(kFiles / "cases.json"));
  const auto folder = fs::path(testing::TempDir()) / "tessera_tokenizer_class";
  std::set<std::string> opened_elsewhere;
  int equal = 0, refused = 0;
  for (const auto& test : file["cases"]) {
    SCOPED_TRACE(test["files"].dump() + test["config"].dump() + test["others"].dump());
    write_folder(folder, test);
    const auto name = test["config"].is_null() ? "" : test["config"].value("tokenizer_class", "");
    std::shared_ptr<const Tokenizer> tokenizer;
    try {
      tokenizer = open_tokenizer(folder.string());
    } catch (const DataError& e) {
      ++refused;
      if (test.contains("crc"))
        opened_elsewhere.insert(name + (test["files"].dump().find(".json:") == std::string::npos ? " converted" : ""));
      continue;
    }
    if (test.contains("refused")) {
      EXPECT_TRUE(is_own_rule(test, name)) << "AutoTokenizer: " << test["refused"];
      continue;
    }
    const auto& s = tokenizer->special_tokens();
    const std::vector<std::string> special{s.bos, s.eos, s.unk, s.sep, s.pad, s.cls, s.mask};
    EXPECT_EQ(special, test["special"].get<std::vector<std::string>>());
    EXPECT_EQ(tokenizer->vocab_size(), test["size"].get<std::int64_t>());
    EXPECT_EQ(tokenizer->gives_type_ids(), test["type_ids"].get<bool>());
    for (std::size_t i = 0; i < test["crc"].size(); ++i) {
      const auto text = file["texts"][i].get<std::string>();
      EXPECT_EQ(result(*tokenizer, text, name != "CodeLlamaTokenizer"), test["crc"][i].get<std::uint32_t>())
          << file["texts"][i].dump(-1, ' ', true);
    }
    ++equal;
  }
  EXPECT_EQ(opened_elsewhere, kRefusedHere);
  EXPECT_GT(equal, 300);
  EXPECT_GT(refused, 100);
}

using Ids = std::vector<std::int32_t>;

// Without the first line, whatever it says, and without what no line end follows; Qwen2's class reads all lines.
TEST(TokenizerClasses, MergesAreTheLinesThatTheClassReads) {
  const auto folder = fs::path(testing::TempDir()) / "tessera_tokenizer_merges";
  const auto ids = [&](const char* name, const char* merges) {
    write_folder(folder,
                 {{"files", Json::array()}, {"config", {{"tokenizer_class", name}}}, {"others", Json::object()}});
    std::ofstream(folder / "vocab.json") << R"({"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "<|endoftext|>": 5})";
    std::ofstream(folder / "merges.txt") << merges;
    return open_tokenizer(folder.string())->encode("bcab").ids;
  };
  EXPECT_EQ(ids("GPT2Tokenizer", "#version: 0.2\na b\nb c\n"), (Ids{4, 3}));
  EXPECT_EQ(ids("GPT2Tokenizer", "a b\nb c\n"), (Ids{4, 0, 1}));
  EXPECT_EQ(ids("GPT2Tokenizer", "#version: 0.2\na b\nb c"), (Ids{1, 2, 3}));
  EXPECT_EQ(ids("GPT2Tokenizer", "a b"), (Ids{1, 2, 0, 1}));
  EXPECT_EQ(ids("Qwen2Tokenizer", "a b\nb c"), (Ids{4, 3}));
}

// The expected ids are those of AutoTokenizer in transformers 4.57.3.
TEST(TokenizerClasses, RanksOfTiktokenAreAVocabulary) {
  const auto folder = fs::temp_directory_path() / "tessera_tokenizer_tiktoken";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  };
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* longer : {"he", "ll", "llo", " he", "\xC3\xA9"}) tokens.emplace_back(longer);
  std::string ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) ranks += encode_base64(tokens[i]) + " " + std::to_string(i) + "\n";
  write("tokenizer.model", ranks);
  const auto ids_of = [&](const Json& config) {
    write("tokenizer_config.json", config.dump());
    return joined(open_tokenizer(folder.string())
                      ->encode("hello hello! <|x|>\xC3\xA9"
                               "12")
                      .ids);
  };
  const Json more = {"<|x|>"};
  EXPECT_EQ(ids_of({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"additional_special_tokens", more}}),
            "256 258 259 258 33 32 261 260 49 50");
  EXPECT_EQ(
      ids_of({{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", "<|b|>"}, {"additional_special_tokens", more}}),
      "262 256 258 259 258 33 32 261 260 49 50");
  EXPECT_THROW(ids_of({{"tokenizer_class", "Qwen2Tokenizer"}}), DataError);
  write("tokenizer.model", ranks + "no rank\n");
  EXPECT_THROW(ids_of({{"tokenizer_class", "LlamaTokenizer"}}), DataError);
}

TEST(TokenizerClasses, T5sTakesAModelOfMergesToo) {
  const auto folder = fs::path(testing::TempDir()) / "tessera_tokenizer_t5_bpe";
  write_folder(folder, {{"files", {"llama.model:spiece.model"}},
                        {"config", {{"tokenizer_class", "T5Tokenizer"}, {"extra_ids", 2}}},
                        {"others", Json::object()}});
  const auto tokenizer = open_tokenizer(folder.string());
  EXPECT_EQ(tokenizer->encode("the company").ids, (Ids{265, 282, 299, 389, 294, 387, 2}));
  EXPECT_EQ(tokenizer->encode("a<extra_id_0>b<extra_id_1>").ids, (Ids{261, 421, 268, 420, 2}));
}

// The slow form of Llama's class makes special what it names; its mask token it leaves as it is.
TEST(TokenizerClasses, APieceOfTheUsersIsSpecialIfTheSlowFormNamesIt) {
  const auto folder = fs::path(testing::TempDir()) / "tessera_tokenizer_users_piece";
  const std::string piece("\x0a\x0c\x0a\x03<u>\x15\0\0\0\0\x18\x04", 14);  // of ModelProto
  const auto without_special = [&](const char* role) {
    write_folder(folder, {{"files", {"llama.model:tokenizer.model"}},
                          {"config", {{"tokenizer_class", "LlamaTokenizer"}, {role, "<u>"}}},
                          {"others", Json::object()}});
    std::ofstream(folder / "tokenizer.model", std::ios::app | std::ios::binary) << piece;
    const auto tokenizer = open_tokenizer(folder.string());
    return tokenizer->decode(tokenizer->encode("a<u>").ids, true);
  };
  EXPECT_EQ(without_special("pad_token"), "a");
  EXPECT_EQ(without_special("mask_token"), "a<u>");
}

// As transformers 5.24 does with the class that it writes.
TEST(TokenizerClasses, ThatOfTransformers5GivesTypeIdsOnlyIfItsFolderSaysSo) {
  const auto folder = fs::path(testing::TempDir()) / "tessera_tokenizer_class_5";
  const auto gives = [&](const Json& config) {
    write_folder(folder, {{"files", {"bert.json:tokenizer.json"}}, {"config", config}, {"others", Json::object()}});
    return open_tokenizer(folder.string())->gives_type_ids();
  };
  EXPECT_FALSE(gives({{"tokenizer_class", "TokenizersBackend"}}));
  EXPECT_TRUE(
      gives({{"tokenizer_class", "TokenizersBackend"}, {"model_input_names", {"input_ids", "token_type_ids"}}}));
  EXPECT_TRUE(gives({{"tokenizer_class", "PreTrainedTokenizerFast"}}));
}

}  // namespace
}  // namespace tessera::text
