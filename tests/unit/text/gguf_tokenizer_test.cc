// Vocabularies as GGUF files hold them, against the output of the files that they were made from.
#include "text/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/gguf.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "text/gguf_vocabulary_of.h"
#include "text/sentencepiece_model.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kGgufReferences = std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/";

void expect_rows(const Tokenizer& tokenizer, const std::string& name) {
  const auto expected = Json::parse(std::ifstream(kGgufReferences + name + "/expected.json"));
  for (const auto& row : expected["rows"]) {
    SCOPED_TRACE(row["text"].dump(-1, ' ', true));
    const auto e = tokenizer.encode(row["text"].get<std::string>());
    EXPECT_EQ(e.ids, row["ids"].get<Ids>());
    EXPECT_EQ(tokenizer.decode(e.ids), row["decode"].get<std::string>());
  }
}

GgufVocabulary of_model(const std::string& model) {
  GgufVocabulary out;
  out.file = "model.gguf";
  out.model = model;
  return out;
}

GgufVocabulary llama() {
  const auto model = parse_sentencepiece(read_file(kGgufReferences + "llama2/tokenizer.model"), "m");
  auto out = of_model("llama");
  for (const auto& piece : model.pieces) {
    out.tokens.push_back(piece.text);
    out.scores.push_back(piece.score);
    out.token_types.push_back(static_cast<std::int32_t>(piece.type));
  }
  out.bos_id = model.bos_id;
  out.eos_id = model.eos_id;
  out.unk_id = model.unk_id;
  return out;
}

GgufVocabulary gpt2(const std::string& name) {
  auto out = of_model("gpt2");
  const auto vocabulary = Json::parse(std::ifstream(kGgufReferences + name + "/vocab.json"));
  out.tokens.resize(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) out.tokens[id.get<std::size_t>()] = token;
  std::ifstream merges(kGgufReferences + name + "/merges.txt");
  for (std::string line; std::getline(merges, line);)
    if (!line.starts_with("#version")) out.merges.push_back(line);
  out.token_types.assign(out.tokens.size(), 1);
  return out;
}

TEST(GgufTokenizer, LlamaJoinsByScores) {
  auto vocabulary = llama();
  vocabulary.chat_templates["default"] = "{{ x }}";
  const auto tokenizer = make_gguf_tokenizer(vocabulary);
  expect_rows(*tokenizer, "llama2");
  EXPECT_EQ(tokenizer->special_tokens().bos, "<s>");
  EXPECT_EQ(tokenizer->chat_template(), "{{ x }}");
  EXPECT_EQ(tokenizer->encode_pair("a", "b", {}).type_ids.back(), 1);
  vocabulary.add_bos = false;
  vocabulary.add_space_prefix = false;
  const auto plain = make_gguf_tokenizer(vocabulary);
  EXPECT_EQ(plain->encode("the").ids, (Ids{plain->token_to_id("the")}));
}

// Its templates put a line end behind "<|user|>", which is no token there: so in transformers and llama.cpp.
TEST(GgufTokenizer, Phi3sTokensTakeTheWhiteSpaceBehindThem) {
  GgufHeader header;
  header.metadata = {{"tokenizer.ggml.model", std::string("llama")},
                     {"tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>", "<|endoftext|>",
                                                                        "<|user|>", "\u2581", "a", "\n"}},
                     {"tokenizer.ggml.scores", std::vector<double>(8, 0.0)},
                     {"tokenizer.ggml.token_type", std::vector<std::int64_t>{2, 3, 3, 3, 3, 1, 1, 1}},
                     {"tokenizer.ggml.add_bos_token", false}};
  const auto ids = [&](const char* text) { return make_gguf_tokenizer(gguf_vocabulary(header))->encode(text).ids; };
  EXPECT_EQ(ids("<|user|>\na"), (Ids{4, 5, 7, 6}));
  for (const auto& [key, value] : {std::pair("general.architecture", "phi3"), {"general.name", "Phi-3 mini"}}) {
    auto named = header;
    named.metadata[key] = std::string(value);
    std::swap(header, named);
    EXPECT_EQ(ids("<|user|>\na"), (Ids{4, 5, 6})) << key;
    EXPECT_EQ(ids("</s>\na"), (Ids{2, 5, 6})) << key;
    for (const char* plain : {"<s>\na", "<|endoftext|>\na"}) EXPECT_EQ(ids(plain).size(), 4u) << key;
    std::swap(header, named);
  }
}

TEST(GgufTokenizer, PreNamesTheExpression) {
  auto vocabulary = gpt2("gpt2");
  vocabulary.eos_id = static_cast<std::int32_t>(vocabulary.tokens.size()) - 1;
  for (const char* pre : {"", "default", "gpt-2"}) {
    vocabulary.pre = pre;
    expect_rows(*make_gguf_tokenizer(vocabulary), "gpt2");
  }
  vocabulary = gpt2("qwen2");
  vocabulary.pre = "qwen2";
  for (std::size_t i = 656; i < 659; ++i) vocabulary.token_types[i] = 3;
  expect_rows(*make_gguf_tokenizer(vocabulary), "qwen2");
  vocabulary.pre = "smollm";
  const auto digits = make_gguf_tokenizer(vocabulary)->encode("2024").ids;
  EXPECT_EQ(digits.size(), 4u);
  vocabulary.pre = "falcon";
  EXPECT_FALSE(make_gguf_tokenizer(vocabulary)->encode("a!? 12345").ids.empty());
}

// What llama.cpp takes for granted of a name: whether a text begins with the first token, and whether a word that is a
// token is one though no merges make it.
TEST(GgufTokenizer, PreNamesWhatTheFileDoesNotSay) {
  auto vocabulary = of_model("gpt2");
  vocabulary.tokens = {"a", "b", "c", "ab", "abc", "<s>"};
  vocabulary.token_types = {1, 1, 1, 1, 1, 3};
  vocabulary.merges = {"a b"};
  vocabulary.bos_id = 5;
  for (const char* pre : {"llama-bpe", "llama3", "falcon3", "tekken"}) {
    vocabulary.pre = pre;
    EXPECT_EQ(make_gguf_tokenizer(vocabulary)->encode("abc").ids, (Ids{5, 4})) << pre;
  }
  for (const char* pre : {"dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "gpt-4o", "qwen2"}) {
    vocabulary.pre = pre;
    EXPECT_EQ(make_gguf_tokenizer(vocabulary)->encode("abc").ids, (Ids{3, 2})) << pre;
  }
}

// Compared with llama.cpp's lists of texts and numbers for both, too, whose vocabularies are too large to lie here.
TEST(GgufTokenizer, DeepSeeksDigitsAndScriptsStandByThemselves) {
  auto vocabulary = of_model("gpt2");
  vocabulary.tokens = {"1", "2", "12", "a", "Ġ", "Ġa", "!", "a!", "Ġ!", "aa"};
  vocabulary.token_types = std::vector<std::int32_t>(vocabulary.tokens.size(), 1);
  vocabulary.merges = {"1 2", "a !", "Ġ a", "Ġ !", "a a"};
  for (const char* pre : {"deepseek-llm", "deepseek-coder"}) {
    vocabulary.pre = pre;
    const auto tokenizer = make_gguf_tokenizer(vocabulary);
    EXPECT_EQ(tokenizer->encode("12").ids, (Ids{0, 1})) << pre;
    EXPECT_EQ(tokenizer->encode("a! a !aa").ids, (Ids{3, 6, 5, 8, 9})) << pre;
  }
}

TEST(GgufTokenizer, WhatIsWrittenSaysWhetherATextBeginsWithATokenWhereReadersAssumeIt) {
  auto vocabulary = of_model("gpt2");
  vocabulary.tokens = {"a", "b", "c", "ab", "abc", "<s>"};
  vocabulary.token_types = {1, 1, 1, 1, 1, 3};
  vocabulary.merges = {"a b"};
  vocabulary.bos_id = 5;
  for (const char* pre : {"llama-bpe", "tekken", "dbrx", "gpt-2"})
    for (const bool begins : {true, false}) {
      vocabulary.pre = pre;
      vocabulary.add_bos = begins;
      const auto tokenizer = make_gguf_tokenizer(vocabulary);
      const auto folder = test::TempFolder("gguf_written");
      tokenizer->save(folder.path());
      const auto json = Json::parse(read_file(folder.path() + "/tokenizer.json"));
      const auto written = gguf_vocabulary_of(*tokenizer, json, 6);
      EXPECT_EQ(written.pre, pre);
      EXPECT_EQ(make_gguf_tokenizer(written)->encode("abc").ids, tokenizer->encode("abc").ids) << pre << ' ' << begins;
    }
}

/// A byte-level tokenizer whose model says byte_fallback, too, as SmolLM2's.
TEST(GgufTokenizer, AByteLevelTokenizerIsWrittenAsSuchWhateverItsModelSays) {
  const auto folder = test::TempFolder("gguf_byte_level");
  make_gguf_tokenizer(gpt2("gpt2"))->save(folder.path());
  auto json = Json::parse(read_file(folder.path() + "/tokenizer.json"));
  json["model"]["byte_fallback"] = true;
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  write_file_atomically(folder.path() + "/tokenizer.json", json.dump());
  const auto tokenizer = open_tokenizer(folder.path());
  const auto written = gguf_vocabulary_of(*tokenizer, json, tokenizer->vocab_size());
  EXPECT_EQ(written.model, "gpt2");
  EXPECT_EQ(make_gguf_tokenizer(written)->encode("Hello, pears").ids, tokenizer->encode("Hello, pears").ids);
}

TEST(GgufTokenizer, WhatWouldCutTextsInAnotherWayIsRefused) {
  const auto folder = test::TempFolder("gguf_other_way");
  auto json = Json::parse(read_file(kGgufReferences + "chatml/tokenizer.json"));
  const auto described = json;
  json["normalizer"] = {{"type", "Lowercase"}};
  write_file_atomically(folder.path() + "/tokenizer.json", json.dump());
  const auto tokenizer = open_tokenizer(folder.path());
  try {  // by a description that is not the tokenizer's
    (void)gguf_vocabulary_of(*tokenizer, described, tokenizer->vocab_size());
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("export a folder"), std::string::npos) << e.what();
  }
}

TEST(GgufTokenizer, BertWordsHaveASignAndContinuationsNone) {
  auto vocabulary = of_model("bert");
  std::ifstream file(kGgufReferences + "bert/vocab.txt");
  for (std::string line; std::getline(file, line);) {
    const bool special = line.starts_with('[') && line.size() > 1;
    vocabulary.tokens.push_back(special ? line : line.starts_with("##") ? line.substr(2) : "\xE2\x96\x81" + line);
    vocabulary.token_types.push_back(special ? 3 : 1);
  }
  vocabulary.unk_id = 1;
  vocabulary.cls_id = 2;
  vocabulary.sep_id = 3;
  expect_rows(*make_gguf_tokenizer(vocabulary), "bert");
}

TEST(GgufTokenizer, T5IsUnigram) {
  const std::string folder = std::string(TESSERA_TEST_DATA) + "/tokenizers/";
  const auto model = parse_sentencepiece(read_file(folder + "t5_spiece.model"), "m");
  auto vocabulary = of_model("t5");
  for (const auto& piece : model.pieces) {
    vocabulary.tokens.push_back(piece.text);
    vocabulary.scores.push_back(piece.score);
    vocabulary.token_types.push_back(static_cast<std::int32_t>(piece.type));
  }
  vocabulary.precompiled_charsmap = model.precompiled_charsmap;
  vocabulary.eos_id = 1;
  const auto tokenizer = make_gguf_tokenizer(vocabulary), original = open_tokenizer(folder + "t5_spiece.model");
  for (const char* text : {"", "Hello  world", "na\xC3\xAFve \xEF\xAC\x81sh </s> x"})
    EXPECT_EQ(tokenizer->encode(text).ids, original->encode(text).ids);
  EXPECT_EQ(tokenizer->encode_pair("a", "b", {}).type_ids.back(), 0);

  const auto ids = [&](bool prefix, bool trims, const char* text) {
    vocabulary.add_space_prefix = prefix;
    vocabulary.remove_extra_whitespaces = trims;
    return make_gguf_tokenizer(vocabulary)->encode(text).ids;
  };
  const char* spaces = "  a  b ";
  const auto sign = tokenizer->token_to_id("\u2581");
  EXPECT_EQ(ids(true, true, spaces), tokenizer->encode("a b").ids);
  EXPECT_EQ(ids(false, true, spaces), ids(false, false, "a b"));
  EXPECT_EQ(ids(false, false, "a b"), ids(false, true, "a b"));
  EXPECT_NE(ids(false, true, "a b"), ids(true, true, "a b"));
  const auto kept = ids(true, false, spaces);
  EXPECT_EQ(kept.front(), sign);
  EXPECT_GT(kept.size(), tokenizer->encode(spaces).ids.size());

  GgufHeader header;
  header.metadata = {{"tokenizer.ggml.model", std::string("t5")},
                     {"tokenizer.ggml.tokens", std::vector<std::string>{"a"}},
                     {"tokenizer.ggml.remove_extra_whitespaces", false}};
  EXPECT_EQ(gguf_vocabulary(header).remove_extra_whitespaces, false);
}

TEST(GgufTokenizer, ErrorsNameTheKey) {
  const auto message = [](const GgufVocabulary& vocabulary) {
    try {
      make_gguf_tokenizer(vocabulary);
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  auto vocabulary = gpt2("gpt2");
  vocabulary.pre = "new-one";
  EXPECT_NE(message(vocabulary).find("tokenizer.ggml.pre \"new-one\"; known are"), std::string::npos);
  vocabulary.pre = "gpt-2";
  vocabulary.eos_id = 1 << 20;
  EXPECT_NE(message(vocabulary).find("tokenizer.ggml.eos_token_id: there is no token 1048576"), std::string::npos);
  vocabulary.eos_id = -1;
  vocabulary.tokens[3] = "\xFF";
  EXPECT_NE(message(vocabulary).find("token 3 is not UTF-8"), std::string::npos);
  vocabulary.tokens.clear();
  EXPECT_NE(message(vocabulary).find("tokenizer.ggml.tokens"), std::string::npos);
  vocabulary = llama();
  vocabulary.scores.pop_back();
  EXPECT_NE(message(vocabulary).find("tokenizer.ggml.scores"), std::string::npos);
  vocabulary.model = "rwkv";
  vocabulary.scores.clear();
  EXPECT_NE(message(vocabulary).find("\"rwkv\"; known are llama, gpt2, bert, t5"), std::string::npos);
}

}  // namespace
}  // namespace tessera::text
