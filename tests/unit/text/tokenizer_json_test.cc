// What single keys of tokenizer.json do, as the reference (tokenizers 0.22.2) has it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& json) {
  const auto file = std::filesystem::temp_directory_path() / ("tessera_json_" + std::to_string(::getpid()) + ".json");
  write_file_atomically(file.string(), json);
  const auto out = open_tokenizer(file.string());
  std::filesystem::remove(file);
  return out;
}

TEST(TokenizerJson, HolesInTheVocabularyDecodeToNothing) {
  const auto t = tokenizer_of(R"({"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 1, "a": 3}}})");
  EXPECT_EQ(t->decode({0, 3, 2, 1, 0}, false), "a u");
}

TEST(TokenizerJson, OfTokensThatTheNormalizerMakesAlikeTheSpecialOneIsFound) {
  const auto t = tokenizer_of(R"({"normalizer": {"type": "Lowercase"}, "added_tokens": [
      {"id": 1, "content": "<S>", "normalized": true}, {"id": 2, "content": "<s>", "normalized": true, "special": true}],
      "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0}}})");
  EXPECT_EQ(t->encode("<S>").ids, std::vector<std::int32_t>{2});
}

// As "\n" does to a T5's tokenizer, whose normalizer strips: upstream then finds the token between any two characters.
TEST(TokenizerJson, ATokenThatTheNormalizerLeavesNothingOfCutsTheTextIntoCharacters) {
  using Ids = std::vector<std::int32_t>;
  const auto with = [](const std::string& flags) {
    return tokenizer_of(R"({"normalizer": {"type": "Strip", "strip_left": false, "strip_right": true}, "added_tokens": [
        {"id": 4, "content": "\n\n", "normalized": true, )" +
                        flags + R"(}, {"id": 5, "content": "ab", "normalized": true}],
        "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"a": 0, "b": 1, "u": 2, " ": 3}}})");
  };
  const auto left = with(R"("lstrip": true)"), right = with(R"("rstrip": true)"),
             word = with(R"("lstrip": true, "single_word": true)");
  EXPECT_EQ(left->encode("ab b").ids, (Ids{5, 4, 1}));
  EXPECT_EQ(left->encode("abba").ids, (Ids{5, 1, 0}));
  EXPECT_EQ(left->encode("a b\n\nab c").ids, (Ids{0, 4, 1, 4, 2, 5, 4, 2}));
  EXPECT_EQ(left->encode("b ab").ids, (Ids{1, 3, 5}));
  EXPECT_EQ(right->encode("ab b").ids, (Ids{5, 3, 1}));
  EXPECT_EQ(right->encode("a b  b").ids, (Ids{0, 4, 1, 4, 4, 1}));
  EXPECT_EQ(right->encode("b  ab").ids, (Ids{1, 4, 4, 5}));
  EXPECT_EQ(word->encode("ab b").ids, (Ids{5, 2}));
  EXPECT_EQ(word->encode("a - b").ids, (Ids{0, 4, 2, 2}));
  EXPECT_EQ(word->encode("b  ab").ids, (Ids{1, 4, 3, 5}));
}

TEST(TokenizerJson, TextThatTheNormalizerCutInFrontIsNotTheFirst) {
  const auto t = tokenizer_of(R"({"normalizer": {"type": "Strip", "strip_left": true, "strip_right": false},
      "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": false},
      "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "_a": 1, "a": 2}}})");
  EXPECT_EQ(t->encode("a").ids, std::vector<std::int32_t>{1});
  EXPECT_EQ(t->encode(" a").ids, std::vector<std::int32_t>{2});
}

TEST(TokenizerJson, WithoutAnUnknownTokenAPieceMayCoverWhatItsCharactersDoNot) {
  const auto t = tokenizer_of(R"({"model": {"type": "Unigram", "unk_id": null,
      "vocab": [["2024", -1.0], ["2", -2.0], ["0", -2.0], ["x", -2.0]]}})");
  EXPECT_EQ(t->encode("2024x").ids, (std::vector<std::int32_t>{0, 3}));
  EXPECT_THROW(t->encode("24"), DataError);
}

TEST(TokenizerJson, EqualPiecesAreAllSpecialWhereTheTokenIs) {
  const auto t = tokenizer_of(R"({"added_tokens": [{"id": 2, "content": "<unk>", "special": true}],
      "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["<unk>", 0.0]]}})");
  EXPECT_EQ(t->decode({0, 1, 2}, true), "a");
  EXPECT_EQ(t->decode({0, 1, 2}, false), "<unk> a <unk>");
}

TEST(TokenizerJson, SpecialTokensOfATemplateMayHoldAnySign) {
  const auto t = tokenizer_of(R"({"post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "\u0000", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
      "special_tokens": {"\u0000": {"id": "\u0000", "ids": [1], "tokens": ["\u0000"]}}},
      "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "\u0000": 1}}})");
  EXPECT_EQ(t->encode("u").ids, (std::vector<std::int32_t>{1, 0}));
}

// T5's scores of these pieces; the segmentations differ in the last bit of their sums.
TEST(TokenizerJson, ScoresAreReadWithTheReferencesRounding) {
  const auto t = tokenizer_of(R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0],
      ["9", -9.71633529663086], ["99", -10.582542419433594], ["999", -12.486284255981445]]}})");
  EXPECT_EQ(t->encode("99999999999").ids, (std::vector<std::int32_t>{3, 3, 3, 2}));
  EXPECT_EQ(t->encode("9999999999999999").ids, (std::vector<std::int32_t>{3, 3, 3, 2, 2, 3}));
}

TEST(TokenizerJson, TwoProcessorsThatAddTokensAreRefused) {
  const std::string bert = R"({"type": "BertProcessing", "sep": ["u", 0], "cls": ["u", 0]})",
                    bytes = R"({"type": "ByteLevel"})",
                    model = R"("model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1}})";
  const auto sequence = [&](const std::string& one, const std::string& other) {
    return R"({"post_processor": {"type": "Sequence", "processors": [)" + one + "," + other + "]}," + model + "}";
  };
  EXPECT_EQ(tokenizer_of(sequence(bert, bytes))->encode("a").ids, (std::vector<std::int32_t>{0, 1, 0}));
  EXPECT_THROW(tokenizer_of(sequence(bert, bert)), DataError);
}

// What tokenizers 0.22.2 gives for "a" and "b": ids, then type ids, with the special tokens and without.
TEST(TokenizerJson, TypeIdsAreThePostProcessors) {
  using Ids = std::vector<std::int32_t>;
  const auto expect = [](const std::string& processor, const Ids& one, const Ids& two, const Ids& plain) {
    SCOPED_TRACE(processor);
    const auto t = tokenizer_of(R"({"post_processor": )" + processor + R"(,
        "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1, "b": 2, "c": 3}}})");
    const auto all = [](Encoding e) {
      e.ids.insert(e.ids.end(), e.type_ids.begin(), e.type_ids.end());
      return e.ids;
    };
    EXPECT_EQ(all(t->encode("a")), one);
    EXPECT_EQ(all(t->encode_pair("a", "b", {})), two);
    EXPECT_EQ(all(t->encode_pair("a", "b", {.add_special_tokens = false})), plain);
  };
  const std::string bytes = R"({"type": "ByteLevel"})",
                    bert = R"({"type": "BertProcessing", "sep": ["c", 3], "cls": ["u", 0]})",
                    roberta = R"({"type": "RobertaProcessing", "sep": ["c", 3], "cls": ["u", 0]})",
                    xlnet = R"({"type": "TemplateProcessing",
      "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "c", "type_id": 2}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "c", "type_id": 2}},
               {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "c", "type_id": 3}}],
      "special_tokens": {"c": {"id": "c", "ids": [3, 0], "tokens": ["c", "u"]}}})",
                    turned = R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 4}}],
      "pair": [{"Sequence": {"id": "B", "type_id": 5}}, {"Sequence": {"id": "A", "type_id": 4}}],
      "special_tokens": {}})";
  const auto sequence = [](const std::string& first, const std::string& second) {
    return R"({"type": "Sequence", "processors": [)" + first + "," + second + "]}";
  };
  for (const std::string& one : {std::string("null"), bytes}) expect(one, {1, 0}, {1, 2, 0, 1}, {1, 2, 0, 1});
  for (const std::string& one : {bert, sequence(bert, bytes)})
    expect(one, {0, 1, 3, 0, 0, 0}, {0, 1, 3, 2, 3, 0, 0, 0, 1, 1}, {1, 2, 0, 1});
  expect(roberta, {0, 1, 3, 0, 0, 0}, {0, 1, 3, 3, 2, 3, 0, 0, 0, 0, 0, 0}, {1, 2, 0, 0});
  for (const std::string& one : {xlnet, sequence(bytes, xlnet)})
    expect(one, {1, 3, 0, 0, 2, 2}, {1, 3, 0, 2, 3, 0, 0, 2, 2, 1, 3, 3}, {1, 2, 0, 1});
  for (const std::string& one : {turned, sequence(bytes, turned), sequence(turned, bytes)})
    expect(one, {1, 4}, {2, 1, 5, 4}, {2, 1, 5, 4});
}

// As tokenizers: whichever text is to be cut, nothing is left of either.
TEST(TokenizerJson, WhereSpecialTokensTakeTheWholeLengthBothTextsGo) {
  const auto t = tokenizer_of(R"({"post_processor": {"type": "BertProcessing", "sep": ["c", 2], "cls": ["u", 0]},
      "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1, "c": 2}}})");
  for (const auto cut : {Truncation::kLongestFirst, Truncation::kOnlyFirst, Truncation::kOnlySecond})
    EXPECT_EQ(t->encode_pair("a", "a", {.max_length = 3, .truncation = cut}).ids, (std::vector<std::int32_t>{0, 2, 2}));
}

TEST(TokenizerJson, OffsetsAreTrimmedOnceForEachProcessor) {
  const auto first = [](const std::string& processors, const char* text) {
    return tokenizer_of(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        "post_processor": {"type": "Sequence", "processors": [)" +
                        processors + R"(]}, "model": {"type": "WordLevel", "unk_token": "u",
        "vocab": {"u": 0, "ĠĠa": 1, "Ġa": 2}}})")
        ->encode(text)
        .offsets[0]
        .first;
  };
  const std::string plain = R"({"type": "ByteLevel", "add_prefix_space": false})",
                    prefixed = R"({"type": "ByteLevel"})", none = R"({"type": "ByteLevel", "trim_offsets": false})";
  EXPECT_EQ(first(plain + "," + plain, " a"), 2);
  EXPECT_EQ(first(prefixed + "," + plain, " a"), 1);
  EXPECT_EQ(first(plain + "," + prefixed, "  a"), 3);
  EXPECT_EQ(first(prefixed + "," + none, " a"), 0);
}

TEST(TokenizerJson, AnEmptyTextInFrontTakesTheFirstOffset) {
  const auto t = tokenizer_of(R"({"normalizer": {"type": "Prepend", "prepend": ""}, "pre_tokenizer": {"type": "Split",
      "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
      "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1, "b": 2}}})");
  using Offsets = std::vector<std::pair<std::int32_t, std::int32_t>>;
  EXPECT_EQ(t->encode("ab").offsets, (Offsets{{0, 0}, {1, 2}}));
}

/// Of a folder with these words, this tokenizer_config.json and this in tokenizer.json.
std::shared_ptr<const Tokenizer> configured(const std::string& config, const std::string& more = {}) {
  const test::TempFolder folder("tokenizer_config");
  const std::string added = R"("added_tokens": [{"id": 2, "content": "<e>", "special": true}])",
                    model = R"("model": {"type": "WordLevel", "unk_token": "u", "vocab": )"
                            R"({"u": 0, "a": 1, "<e>": 2, "e": 3, "<x>": 4}})";
  write_file_atomically(folder.path() + "/tokenizer.json", R"({"pre_tokenizer": {"type": "Whitespace"}, )" +
                                                               (more.empty() ? added : more) + ", " + model + "}");
  write_file_atomically(folder.path() + "/tokenizer_config.json", config);
  return open_tokenizer(folder.path());
}

TEST(TokenizerConfig, SpecialTokensInATextMayBeText) {
  EXPECT_EQ(configured(R"({"tokenizer_class": "PreTrainedTokenizerFast"})")->encode("a<e>").ids,
            (std::vector<std::int32_t>{1, 2}));
  const auto split = configured(R"({"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": true})");
  EXPECT_EQ(split->encode("a<e>").ids, (std::vector<std::int32_t>{1, 0, 3, 0}));
  TokenizerChanges changes;
  changes.special.pad = "a";
  EXPECT_EQ(split->with(changes)->encode("a<e>").ids, (std::vector<std::int32_t>{1, 0, 3, 0}));
}

TEST(TokenizerConfig, WhatTokenizerJsonCallsSpecialStaysSo) {
  const auto t = configured(R"({"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {
      "2": {"content": "<e>", "lstrip": true, "special": false}}})");
  const auto encoding = t->encode("a <e>");
  EXPECT_EQ(encoding.offsets.back().first, 1);  // the configuration's flags count otherwise
  EXPECT_EQ(t->decode(encoding.ids, true), "a");
}

TEST(TokenizerConfig, OfATokenInTwoPlacesTheFirstSaysItsFlags) {
  const std::string plain = R"("<x>")", flagged = R"({"__type": "AddedToken", "content": "<x>", "lstrip": true})";
  const auto spaces = [](const std::string& bos, const std::string& pad) {
    const auto t = configured(R"({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": )" + bos +
                              R"(, "pad_token": )" + pad + "}");
    return t->encode("a <x>").offsets.back().first;
  };
  EXPECT_EQ(spaces(plain, flagged), 2);
  EXPECT_EQ(spaces(flagged, plain), 1);
}

TEST(TokenizerConfig, AModelsOwnSpecialTokensHaveTheirFlags) {
  const auto t = configured(R"({"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": {"image_token":
      {"__type": "AddedToken", "content": "<i>", "lstrip": true}}})");
  EXPECT_EQ(t->encode("a <i>").offsets.back().first, 1);
}

const std::string kFast = R"("tokenizer_class": "PreTrainedTokenizerFast")";

TEST(TokenizerConfig, ATokenThatIsNamedIsSpecialThoughTokenizerJsonDoesNotSaySo) {
  const std::string added = R"("added_tokens": [{"id": 2, "content": "<e>", "normalized": true, "special": false}])";
  EXPECT_EQ(configured("{" + kFast + R"(, "eos_token": "<e>"})", added)->decode({1, 2}, true), "a");
  EXPECT_EQ(configured("{" + kFast + "}", added)->decode({1, 2}, true), "a <e>");
}

TEST(TokenizerConfig, WhatATokenIsLookedForAsStays) {
  const auto both = [](const char* special) {
    const std::string token =
        std::string(R"("content": "<X>", "single_word": false, "lstrip": false, "rstrip": false, "special": )") +
        special;
    const auto t = configured(
        "{" + kFast + R"(, "added_tokens_decoder": {"5": {"normalized": true, )" + token + "}}}",
        R"("normalizer": {"type": "Lowercase"}, "added_tokens": [{"id": 5, "normalized": false, )" + token + "}]");
    return std::pair(t->encode("a<X>").ids, t->encode("a<x>").ids);
  };
  const std::vector<std::int32_t> found{1, 5}, cut{1, 0, 0, 0};
  EXPECT_EQ(both("true"), std::pair(found, cut));     // a special token in its first way
  EXPECT_EQ(both("false"), std::pair(found, found));  // another in both
}

// The class's mask token is the one of tokenizer.json; the list in between says otherwise.
TEST(TokenizerConfig, AListedTokenKeepsItsFlagsWhereTheClassNamesWhatTheFileHas) {
  const auto offset = [](const std::string& in_file) {
    const auto t = configured(
        R"({"tokenizer_class": "XLMRobertaTokenizer", "added_tokens_decoder": {"5": {"content": "<mask>", "special": true}}})",
        R"("added_tokens": [{"id": 5, "content": "<mask>", "special": true, )" + in_file + "}]");
    return t->encode("a <mask>").offsets.back().first;
  };
  EXPECT_EQ(offset(R"("lstrip": true)"), 2);
  EXPECT_EQ(offset(R"("lstrip": true, "rstrip": true)"), 1);  // the class's own goes behind the list's
}

TEST(TokenizerConfig, NewTokensGetTheirIdsInTheFilesOrder) {
  const auto t =
      configured("{" + kFast + R"(, "extra_special_tokens": {"z": "<z>", "y": "<y>"}, "additional_special_tokens":
      ["<q>", "<p>"], "sep_token": "<s>", "mask_token": "<m>"})",
                 R"("padding": {"pad_token": "<pad>"})");
  std::vector<std::int32_t> ids;
  for (const char* token : {"<s>", "<pad>", "<m>", "<q>", "<p>", "<z>", "<y>"}) ids.push_back(t->token_to_id(token));
  EXPECT_EQ(ids, (std::vector<std::int32_t>{5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(t->pad_id(), 6);
}

TEST(TokenizerConfig, GptNeoXDoesNotTakeItsPadTokenFromTheFilesPadding) {
  const auto pad = [](const std::string& name) {
    return configured("{\"tokenizer_class\": \"" + name + "TokenizerFast\"}", R"("padding": {"pad_token": "<pad>"})")
        ->special_tokens()
        .pad;
  };
  EXPECT_EQ(pad("GPT2"), "<pad>");
  EXPECT_EQ(pad("GPTNeoX"), "");
}

TEST(TokenizerConfig, OfATokenThatIsListedTwiceTheLastSaysItsFlags) {
  const auto t = configured("{" + kFast + R"(, "additional_special_tokens": ["<i>",
      {"__type": "AddedToken", "content": "<i>", "lstrip": true}]})");
  EXPECT_EQ(t->encode("a <i>").offsets.back().first, 1);
}

TEST(TokenizerConfig, Qwen2sNamedTokensHaveNoFlagsButSpecial) {
  const auto spaces = [](const std::string& name) {
    const auto t =
        configured(R"({"tokenizer_class": ")" + name + R"(TokenizerFast", "eos_token": "<e>", "unk_token": "u",
        "pad_token": "<e>", "added_tokens_decoder": {}})",
                   R"("added_tokens": [{"id": 2, "content": "<e>", "lstrip": true, "special": false}])");
    return std::pair(t->encode("a <e>").offsets.back().first, t->decode({1, 2}, true));
  };
  EXPECT_EQ(spaces("Qwen2"), std::pair(2, std::string("a")));
  EXPECT_EQ(spaces("PreTrained"), std::pair(1, std::string("a <e>")));
}

TEST(TokenizerConfig, LongTextsAreCutOnTheSideThatTheFolderNames) {
  const auto cut = [](const std::string& config, const std::string& json) {
    return configured("{" + kFast + config + "}", json)->encode("a e u", EncodeOptions{.max_length = 2}).ids;
  };
  const std::vector<std::int32_t> begin{1, 3}, end{3, 0};
  const std::string left =
      R"("truncation": {"direction": "Left", "max_length": 2, "strategy": "LongestFirst", "stride": 0})";
  EXPECT_EQ(cut("", ""), begin);
  EXPECT_EQ(cut(R"(, "truncation_side": "left")", ""), end);
  EXPECT_EQ(cut("", left), end);
  EXPECT_EQ(cut(R"(, "truncation_side": "right")", left), begin);
  EXPECT_THROW(configured("{" + kFast + R"(, "truncation_side": "both"})"), DataError);
}

TEST(TokenizerConfig, APieceForTheUnknownIsSpecialOnlyIfItIsTheClasssToken) {
  const std::string files = std::string(TESSERA_TEST_DATA) + "/tokenizers/classes/";
  const auto is_special = [&](const char* unk) {
    const test::TempFolder folder("tokenizer_unknown");
    write_file_atomically(folder.path() + "/spiece.model", read_file(files + "t5.model"));
    write_file_atomically(folder.path() + "/tokenizer_config.json",
                          std::string(R"({"tokenizer_class": "T5Tokenizer", "unk_token": ")") + unk + R"("})");
    const auto t = open_tokenizer(folder.path());
    return t->is_special(t->token_to_id("<unk>"));
  };
  EXPECT_TRUE(is_special("<unk>"));
  EXPECT_FALSE(is_special("<pad>"));
}

TEST(TokenizerConfig, AListedTokenThatIsNamedIsNotNormalizedUnlessItSaysSo) {
  const auto found = [](const std::string& flags) {
    return configured(
               "{" + kFast + R"(, "eos_token": "<X>", "added_tokens_decoder": {"5": {"content": "<X>")" + flags + "}}}",
               R"("normalizer": {"type": "Lowercase"}, "added_tokens": [])")
               ->encode("<x>")
               .ids.size() == 1;
  };
  EXPECT_FALSE(found(""));
  EXPECT_TRUE(found(R"(, "normalized": true)"));
}

TEST(TokenizerConfig, AddedTokensJsonSaysNoFlags) {
  const auto begin = [](const std::string& added) {
    const test::TempFolder folder("tokenizer_added");
    write_file_atomically(folder.path() + "/tokenizer.json", R"({"added_tokens": [)" + added + R"(],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1, "<x>": 2}}})");
    write_file_atomically(
        folder.path() + "/tokenizer_config.json",
        "{" + kFast + R"(, "eos_token": {"__type": "AddedToken", "content": "<x>", "lstrip": true}})");
    write_file_atomically(folder.path() + "/added_tokens.json", R"({"<x>": 2})");
    return open_tokenizer(folder.path())->encode("a <x>").offsets.back().first;
  };
  EXPECT_EQ(begin(""), 1);
  EXPECT_EQ(begin(R"({"id": 2, "content": "<x>", "special": false, "normalized": false})"), 2);
}

// Python's tokenizers settle whether a token is normalized before they call it special.
TEST(TokenizerConfig, ANamedTokenOfASentencePieceModelIsNormalizedByDefault) {
  const auto normalized = [](const std::string& config) {
    const test::TempFolder folder("tokenizer_slow"), saved("tokenizer_slow_saved");
    write_file_atomically(folder.path() + "/spiece.model",
                          read_file(std::string(TESSERA_TEST_DATA) + "/tokenizers/classes/t5.model"));
    write_file_atomically(folder.path() + "/tokenizer_config.json",
                          R"({"tokenizer_class": "T5Tokenizer", "extra_ids": 0, )" + config + "}");
    open_tokenizer(folder.path())->save(saved.path());
    const auto json = read_file(saved.path() + "/tokenizer_config.json");
    const auto at = json.find("normalized", json.rfind(R"("content": "<I>")"));
    return json.substr(at, json.find(',', at) - at).find("true") != std::string::npos;
  };
  EXPECT_TRUE(normalized(R"("extra_special_tokens": {"i": {"__type": "AddedToken", "content": "<I>"}})"));
  EXPECT_TRUE(normalized(R"("sep_token": {"__type": "AddedToken", "content": "<I>"})"));
  EXPECT_FALSE(normalized(R"("sep_token": {"__type": "AddedToken", "content": "<I>", "special": true})"));
}

}  // namespace
}  // namespace tessera::text
