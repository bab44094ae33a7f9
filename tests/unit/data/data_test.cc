#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "base/row_limit.h"
#include "chat/jinja/json.h"
#include "data/collate.h"
#include "data/epoch_sampler.h"
#include "data/row_source.h"
#include "data/shuffle.h"
#include "data/text_pair.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / ("tessera_data_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~Files() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }
  // The message must hold every part; the error must carry the line.
  template <class F>
  void expect_error(F f, std::int64_t line, const std::vector<std::string>& parts) {
    try {
      f();
      ADD_FAILURE() << "accepted";
    } catch (const DataError& e) {
      EXPECT_EQ(e.line, line) << e.what();
      for (const auto& part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
  fs::path folder_;
};

// Silently cut inputs would train another job than the user's.
TEST(TokenizedPairs, CountWhatWasCut) {
  const auto tokenizer = text::open_tokenizer(std::string(TESSERA_TEST_DATA) + "/tiny_chat");
  std::vector<TextPair> rows(2);
  rows[0].source = "abcdefgh", rows[0].target = "a";
  rows[1].source = "abcd", rows[1].target = "abcdefgh";
  const auto pairs = tokenize(rows, *tokenizer, {.max_source_length = 4, .max_target_length = 4});
  EXPECT_EQ(pairs.cut_sources, 1);
  EXPECT_EQ(pairs.cut_targets, 1);
  std::vector<std::string> notes;
  note_cut({0, "input", "--max_length", 4}, notes);
  EXPECT_TRUE(notes.empty());
  note_cut({2, "input", "--max_length", 4}, notes);
  EXPECT_EQ(notes.at(0), "2 inputs were cut at --max_length 4; a larger one keeps more of them");
}

using PhraseBank = Files;

TEST_F(PhraseBank, SplitsAtTheLastAtAndDecodesLatin1) {
  const auto file = write("Sentences_AllAgree.txt", "Mail a@b.fi rose .@positive\r\n\nP\xe4iv\xe4 fell@negative");
  const auto rows = read_pairs(file, {});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].source, "Mail a@b.fi rose .");
  EXPECT_EQ(rows[0].target, "positive");
  EXPECT_EQ(rows[1].source, "P\xc3\xa4iv\xc3\xa4 fell");
  EXPECT_EQ(rows[1].line, 3);
}

TEST_F(PhraseBank, Utf8FilesStayUtf8) {
  EXPECT_EQ(read_pairs(write("a.txt", "P\xc3\xa4iv\xc3\xa4@neutral\n"), {})[0].source, "P\xc3\xa4iv\xc3\xa4");
}

TEST_F(PhraseBank, NamesTheLineAtFault) {
  expect_error([&] { read_pairs(write("a.txt", "x@y\nno label here\n"), {}); }, 2, {"a.txt:2", "'@'", "no label here"});
  expect_error([&] { read_pairs(write("a.txt", "x@\n"), {}); }, 1, {"empty label"});
  expect_error([&] { read_pairs(write("a.txt", "\n \n"), {}); }, 0, {"no rows"});
  ReadOptions utf8;
  utf8.encoding = FileEncoding::kUtf8;
  expect_error([&] { read_pairs(write("a.txt", "x@y\n\xe4@z\n"), utf8); }, 2, {"not UTF-8"});
  expect_error([&] { read_pairs(write("a.jsonl", "{\"text\":\"x\",\"label\":\"\xe4\"}\n"), {}); }, 1, {"UTF-8"});
  expect_error([&] { read_pairs((folder_ / "none.txt").string(), {}); }, 0, {"none.txt"});
  expect_error([&] { read_pairs(write("a.xml", "x"), {}); }, 0, {".jsonl"});
}

TEST_F(Files, RowsThatNobodyMeantAreRefusedBeforeTheyAreParsed) {
  // A row without an end: what follows the first bytes is a hole in the file.
  const auto endless = [&](const std::string& name, const std::string& begin) {
    const auto file = write(name, begin);
    fs::resize_file(file, begin.size() + kMaxRowBytes + 1);
    return file;
  };
  const std::vector<std::pair<std::string, std::int64_t>> files = {
      {endless("a.jsonl", "{\"text\":\"x\",\"label\":\"y\"}\n{\"text\":\""), 2},
      {endless("a.json", "[{\"text\":\"x\",\"label\":\"y\"},\n{\"text\":\""), 2},
      {endless("a.csv", "text,label\na,b\n\"c"), 3},
      {endless("b.csv", "text,label\na,b\nc"), 3},
      {endless("a.txt", "x@y\n"), 2}};
  for (const auto& [file, line] : files) {
    SCOPED_TRACE(file);
    const std::string at = fs::path(file).filename().string() + ":" + std::to_string(line) + ": this row has more than";
    expect_error([&] { read_pairs(file, {}); }, line, {at});
    const auto rows = open_rows(file, "text");
    SourceRow row;
    for (std::int64_t before = line - (file.ends_with(".csv") ? 2 : 1); before > 0; --before)
      ASSERT_TRUE(rows->next(row));
    expect_error([&] { rows->next(row); }, line, {at});
  }
}

TEST_F(Files, JsonArraysAreReadAsWrittenOrNotAtAll) {
  const auto texts = [&](const std::string& json) {
    std::string out;
    for (const auto& row : read_pairs(write("a.json", json), {})) out += row.source;
    return out;
  };
  EXPECT_EQ(texts(R"([{"text":"],[","label":1} , {"text":"b","label":2}] )"), "],[b");
  EXPECT_EQ(texts(R"({"version":[1,2],"data":[{"text":"a","label":1}],"end":0})"), "a");
  EXPECT_EQ(texts(R"({"n\"[":{"data":[3]},"text":"c","label":1,"rows":[{"text":"d","label":1}]}
)"),
            "c");
  EXPECT_EQ(texts("{\n\"text\": \"a\",\n\"label\": 1\n}\n"), "a");
  for (const auto& [json, says] : std::vector<std::pair<std::string, std::string>>{
           {R"([{"text":"a","label":1}][{"text":"b","label":2}])", "behind the array"},
           {R"([{"text":"a","label":1} {"text":"b","label":2}])", "expected a comma"},
           {R"([{"text":"a","label":1},,{"text":"b","label":2}])", "row 2 is empty"},
           {R"([{"text":"a","label":1},])", "row 2 is empty"},
           {R"([{"text":"a","label":1})", "never closed"},
           {R"([{"text":"a","label":1)", "never closed"},
           {R"({"data":{"rows":3}] )", "not JSON"},
           {"3", "array of objects"}}) {
    expect_error([&] { texts(json); }, says == "not JSON" ? 1 : 0, {"a.json", says});
  }
}

TEST_F(Files, JsonIsWhatItsBeginSays) {
  const auto texts = [&](const std::string& name, const std::string& json) {
    std::string out;
    const auto source = open_rows(write(name, json), "");
    for (SourceRow row; source->next(row);) out += chat::dump_json(chat::Value(parse_row(row))) + " ";
    return out;
  };
  EXPECT_EQ(texts("a.jsonl", "\n[{\"a\": 1},\n {\"a\": 2}]\n"), R"({"a": 1} {"a": 2} )");
  EXPECT_EQ(texts("a.json", "{\"a\": \"}\"}\n\n{\"a\": 18446744073709551616}\n"),
            R"({"a": "}"} {"a": 18446744073709551616} )");
  EXPECT_EQ(texts("a.json", R"([{"a": NaN, "b": "NaN \" NaN"}, {"a": [-Infinity, Infinity], "NaN": 1}])"),
            R"({"a": null, "b": "NaN \" NaN"} {"a": [null, null], "NaN": 1} )");
  expect_error([&] { texts("a.jsonl", "{\"a\": N}\n"); }, 1, {"not JSON"});
}

TEST_F(Files, ReadsCsvWithQuotesAndLineBreaks) {
  const auto file = write("a.csv", "id,text,label\r\n1,\"a, \"\"b\"\"\nc\",good\r\n\r\n2,plain,\"bad\"");
  const auto rows = read_pairs(file, {});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].source, "a, \"b\"\nc");
  EXPECT_EQ(rows[0].target, "good");
  EXPECT_EQ(rows[1].source, "plain");
  EXPECT_EQ(rows[1].line, 5);
}

/// As pandas reads them, which is what `datasets` does.
TEST_F(Files, RowsOfTablesAreThoseOfPandas) {
  const auto rows_of = [&](const std::string& name, const std::string& table) {
    std::string out;
    const auto source = open_rows(write(name, table), "text");
    for (SourceRow row; source->next(row);) out += chat::dump_json(chat::Value(parse_row(row))) + " ";
    return out;
  };
  EXPECT_EQ(rows_of("a.csv", "text,label\na,\n\"\",\"b\"\n"),
            R"({"text": "a", "label": null} {"text": null, "label": "b"} )");
  EXPECT_EQ(rows_of("a.csv", "text\na\n \t\n b \n\"\"\n  "), R"({"text": "a"} {"text": " b "} {"text": null} )");
  EXPECT_EQ(rows_of("a.csv", "text,text\na,b\n"), R"({"text": "a"} )");
  EXPECT_EQ(rows_of("a.csv", "text\r\"a\rb\"\rc\r"), R"({"text": "a\rb"} {"text": "c"} )");
  EXPECT_EQ(rows_of("a.tsv", "text\tlabel\n\"a\tb\"\tx,y\n\t\n"),
            R"({"text": "a\tb", "label": "x,y"} {"text": null, "label": null} )");
  expect_error([&] { rows_of("a.tsv", "text\n\"a\"b\n"); }, 2, {"expected a tab"});
  EXPECT_EQ(rows_of("a.txt", "a\rb\r\n\r\nc"), R"({"text": "a"} {"text": "b"} {"text": "c"} )");
}

TEST_F(Files, CsvErrorsNameTheLine) {
  expect_error([&] { read_pairs(write("a.csv", "text,label\na,b\nc\n"), {}); }, 3, {"expected 2 fields", "found 1"});
  expect_error([&] { read_pairs(write("a.csv", "text,label\na,b\n\"c,d\n"), {}); }, 3, {"never closed"});
  expect_error([&] { read_pairs(write("a.csv", "text,label\n\"a\"b,c\n"), {}); }, 2, {"expected a comma"});
  expect_error([&] { read_pairs(write("a.csv", "foo,bar\n1,2\n"), {}); }, 2, {"foo, bar", "--text_column"});
  expect_error([&] { read_pairs(write("a.csv", "text,label\n"), {}); }, 0, {"no rows"});
  expect_error([&] { read_pairs(write("a.csv", "text,label\na,b\nc,\n"), {}); }, 3,
               {"column 'label'", "an empty cell"});
}

TEST_F(Files, TheFirstRowDecidesWhichColumnsAreMeant) {
  const auto file = write("a.jsonl", R"({"text":"a","label":1}
{"sentence":"no","text":"b","label":true}
{"sentence":"no","label":1.5}
)");
  expect_error([&] { read_pairs(file, {}); }, 3, {"no column 'text'", "sentence, label"});
  write("b.jsonl", R"({"text":"a","label":1}
{"sentence":"no","text":"b","label":true}
)");
  const auto rows = read_pairs((folder_ / "b.jsonl").string(), {});
  EXPECT_EQ(rows[1].source, "b");
  EXPECT_EQ(rows[1].target, "True");
}

TEST_F(Files, TablesMayBeLatin1) {
  ReadOptions latin1;
  latin1.encoding = FileEncoding::kLatin1;
  latin1.text_column = "s\u00e4tze";
  const auto csv = read_pairs(write("a.csv", "s\xe4tze,label\n\xe4,\xf6\n"), latin1);
  EXPECT_EQ(csv[0].source + csv[0].target, "\u00e4\u00f6");
  const auto json = read_pairs(write("a.jsonl", "{\"s\xe4tze\":\"\xe4\",\"label\":\"\xf6\"}\n"), latin1);
  EXPECT_EQ(json[0].source + json[0].target, "\u00e4\u00f6");
}

TEST_F(Files, ReadsJsonLinesWithChosenColumns) {
  ReadOptions options;
  options.text_column = "q";
  options.label_column = "c";
  options.label_names = {"no", "yes"};
  const auto file = write("a.jsonl", "{\"q\":\"one\",\"c\":1}\n\n{\"q\":\"two\",\"c\":\"other\"}\n");
  const auto rows = read_pairs(file, options);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].target, "yes");
  EXPECT_EQ(rows[1].target, "other");
  EXPECT_EQ(rows[1].line, 3);
  expect_error([&] { read_pairs(write("b.jsonl", "{\"q\":\"one\",\"c\":2}\n"), options); }, 1, {"label 2", "no, yes"});
  options.label_column = "d";
  expect_error([&] { read_pairs(file, options); }, 1, {"no column 'd'", "q, c", "--label_column"});
  expect_error([&] { read_pairs(write("b.jsonl", "{\"text\":\"x\",\"label\":\"y\"}\n{\"text\":"), {}); }, 2,
               {"not JSON"});
  expect_error([&] { read_pairs(write("b.jsonl", "{\"text\":null,\"label\":\"y\"}\n"), {}); }, 1, {"'text'", "null"});
}

TEST_F(Files, ReadsJsonArraysAndPrefersTextLabels) {
  const auto file = write(
      "a.json",
      R"([{"sentence":"a","label":2,"text_label":"positive"},{"sentence":"b","label":0,"text_label":"negative"}])");
  const auto rows = read_pairs(file, {});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].target, "positive");
  EXPECT_EQ(read_pairs(write("b.json", R"({"data":[{"text":"a","label":3}]})"), {})[0].target, "3");
  expect_error([&] { read_pairs(write("b.json", "3"), {}); }, 0, {"array of objects"});
}

TEST_F(Files, SaysWhichColumnsAreReadWhereOthersAreThere) {
  const auto pairs = write("a.jsonl", R"({"instruction": "add", "input": "1 and 2", "output": "3"})");
  const auto splits = read_splits({pairs, ""}, {}, {});
  ASSERT_EQ(splits.notes.size(), 2u);
  EXPECT_EQ(splits.notes[1], pairs +
                                 ": the text is column 'input', the label column 'output'; not read: instruction. "
                                 "--text_column and --label_column choose others");
  const auto plain = write("b.jsonl", R"({"text": "a", "label": "b"})");
  EXPECT_EQ(columns_note(plain, {}), "");
  ReadOptions named;
  named.text_column = "instruction";
  EXPECT_NE(columns_note(pairs, named).find("not read: input"), std::string::npos);
  named.label_column = "output";
  EXPECT_EQ(columns_note(pairs, named), "");
}

TEST_F(Files, FolderPrefersFullAgreementAndSaysSo) {
  write("Sentences_50Agree.txt", "a@b\nc@d\n");
  write("Sentences_AllAgree.txt", "x@y\nz@w\n");
  write("License.txt", "no at sign");
  const auto splits = read_splits({folder_.string(), ""}, {}, {});
  EXPECT_EQ(splits.train.size() + splits.validation.size(), 2u);
  ASSERT_EQ(splits.notes.size(), 1u);
  EXPECT_NE(splits.notes[0].find("Sentences_AllAgree.txt"), std::string::npos);
}

TEST_F(Files, NamedSplitsAreUsedAsTheyAre) {
  const auto train = write("financial_phrase_bank_train.jsonl", "{\"sentence\":\"a\",\"text_label\":\"b\"}\n");
  write("financial_phrase_bank_val.jsonl", "{\"sentence\":\"c\",\"text_label\":\"d\"}\n");
  for (const auto& path : {folder_.string(), train}) {
    const auto splits = read_splits({path, ""}, {}, {});
    ASSERT_EQ(splits.train.size(), 1u);
    ASSERT_EQ(splits.validation.size(), 1u);
    EXPECT_EQ(splits.validation[0].source, "c");
  }
}

TEST_F(Files, FilesWithoutASplitsNameAreOneTrainingSet) {
  expect_error([&] { read_splits({folder_.string(), ""}, {}, {}); }, 0, {"no data file"});
  write("a.csv", "text,label\na,b\n");
  write("b.csv", "label,text\nc,d\n");
  const auto splits = read_splits({folder_.string(), ""}, {}, {.validation_fraction = 0});
  ASSERT_EQ(splits.train.size(), 2u);
  EXPECT_EQ(splits.train[1].source, "d");
  write("train.csv", "text,label\ne,f\n");
  write("dev.csv", "text,label\ng,h\n");
  const auto named = read_splits({folder_.string(), ""}, {}, {});
  ASSERT_EQ(named.train.size(), 1u);
  EXPECT_EQ(named.train[0].source, "e");
  EXPECT_EQ(named.validation[0].source, "g");
}

std::vector<TextPair> numbered(int n) {
  std::vector<TextPair> rows;
  for (int i = 0; i < n; ++i) rows.push_back({std::to_string(i), "t", "f", i + 1});
  return rows;
}

TEST(Split, IsSeededAndKeepsEveryRowOnce) {
  const auto a = split(numbered(50), {0.2, 7}), b = split(numbered(50), {0.2, 7}), c = split(numbered(50), {0.2, 8});
  EXPECT_EQ(a.validation.size(), 10u);
  std::set<std::string> seen;
  for (const auto& r : a.train) seen.insert(r.source);
  for (const auto& r : a.validation) seen.insert(r.source);
  EXPECT_EQ(seen.size(), 50u);
  const auto names = [](const PairSplits& s) {
    std::vector<std::string> out;
    for (const auto& r : s.validation) out.push_back(r.source);
    return out;
  };
  EXPECT_EQ(names(a), names(b));
  EXPECT_NE(names(a), names(c));
  EXPECT_TRUE(split(numbered(5), {0.0, 7}).validation.empty());
  EXPECT_EQ(split(numbered(2), {0.99, 7}).train.size(), 1u);
  EXPECT_THROW(split(numbered(2), {1.0, 7}), ConfigError);
}

std::vector<std::int64_t> global_batch(std::vector<EpochSampler>& ranks) {
  std::vector<std::int64_t> out;
  for (auto& r : ranks)
    for (auto row : r.next()) out.push_back(row);
  return out;
}

std::vector<EpochSampler> world(int size, std::int64_t global, std::int64_t rows, LastBatch last) {
  std::vector<EpochSampler> out;
  for (int r = 0; r < size; ++r) out.emplace_back(SamplerOptions{rows, global / size, r, size, 3, true, last});
  return out;
}

TEST(RowOrder, IsAPermutationThatManyRowsNeedNoMemoryFor) {
  const std::int64_t count = RowOrder::kListed + 12345;
  const auto order = RowOrder::random(count, 3, 0), again = RowOrder::random(count, 3, 0),
             next = RowOrder::random(count, 3, 1);
  std::vector<bool> seen(static_cast<std::size_t>(count));
  double moved = 0;
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto row = order[i];
    ASSERT_TRUE(row >= 0 && row < count && !seen[static_cast<std::size_t>(row)]) << i;
    seen[static_cast<std::size_t>(row)] = true;
    ASSERT_EQ(row, again[i]);
    kept += row == next[i];
    moved += std::abs(static_cast<double>(row - i)) / static_cast<double>(count);
  }
  EXPECT_LT(kept, 20);                                              // one, of two unrelated orders
  EXPECT_NEAR(moved / static_cast<double>(count), 1.0 / 3, 0.002);  // of independent places
}

// Rows of a Trainer of transformers 5.15 with accelerate 1.15: 10 rows, batches of 3, seed 42, two epochs.
TEST(RowOrder, IsThatOfTransformersTrainer) {
  EpochSampler sampler({.rows = 10, .per_device_batch = 3, .seed = 42});
  std::vector<std::vector<std::int64_t>> batches;
  for (int i = 0; i < 8; ++i) batches.push_back(sampler.next());
  const std::vector<std::vector<std::int64_t>> expected = {{2, 6, 1}, {8, 4, 5}, {0, 9, 3}, {7},
                                                           {8, 4, 9}, {0, 5, 1}, {6, 7, 2}, {3}};
  EXPECT_EQ(batches, expected);
}

TEST(RowOrder, OfFewRowsIsTorchs) {
  for (const auto& [count, seed, epoch] : {std::tuple{1, 7, 0}, {2, 0, 1}, {100, 7, 2}, {5000, 1234567, 3}}) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed + epoch));
    const auto expected = at::randperm(count, generator, at::kLong);
    const auto order = RowOrder::random(count, static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(epoch));
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(order[i], expected[i].item<std::int64_t>()) << count << " " << i;
  }
}

TEST(EpochSampler, WorldSizesSeeTheSameGlobalBatches) {
  for (auto last : {LastBatch::kDrop, LastBatch::kKeep}) {
    auto one = world(1, 6, 20, last), two = world(2, 6, 20, last), three = world(3, 6, 20, last);
    for (int i = 0; i < 12; ++i) {
      const auto rows = global_batch(one);
      EXPECT_EQ(rows, global_batch(two));
      EXPECT_EQ(rows, global_batch(three));
    }
  }
}

TEST(EpochSampler, EveryEpochIsAnotherPermutation) {
  EpochSampler sampler({20, 5, 0, 1, 3, true, LastBatch::kDrop});
  std::vector<std::vector<std::int64_t>> epochs(2);
  for (auto& epoch : epochs) {
    for (int i = 0; i < 4; ++i)
      for (auto row : sampler.next()) epoch.push_back(row);
    EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), 20u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(EpochSampler, EveryRowComesOnceInAnEpochOnAnyNumberOfRanks) {
  for (const std::int64_t rows : {1, 2, 5, 16, 20, 21})
    for (const int size : {1, 2, 3, 4}) {
      auto ranks = world(size, 12, rows, LastBatch::kKeep);
      for (int epoch = 0; epoch < 2; ++epoch) {
        std::vector<std::int64_t> seen;
        for (std::int64_t b = 0; b < ranks[0].batches_per_epoch(); ++b) {
          const auto batch = global_batch(ranks);
          EXPECT_EQ(static_cast<std::int64_t>(batch.size()), ranks[0].rows_of_all(b));
          seen.insert(seen.end(), batch.begin(), batch.end());
        }
        EXPECT_EQ(static_cast<std::int64_t>(seen.size()), rows) << size << " ranks";
        EXPECT_EQ(static_cast<std::int64_t>(std::set(seen.begin(), seen.end()).size()), rows) << size << " ranks";
        for (const auto& rank : ranks) EXPECT_EQ(rank.position().epoch, epoch + 1);
      }
    }
}

TEST(EpochSampler, LastBatchFollowsThePolicy) {
  EpochSampler drop({7, 3, 0, 1, 3, false, LastBatch::kDrop}), keep({7, 3, 0, 1, 3, false, LastBatch::kKeep});
  EXPECT_EQ(drop.batches_per_epoch(), 2);
  EXPECT_EQ(keep.batches_per_epoch(), 3);
  for (int i = 0; i < 2; ++i) keep.next();
  EXPECT_EQ(keep.next(), std::vector<std::int64_t>{6});
  EXPECT_EQ(EpochSampler({2, 5, 0, 1, 3, false, LastBatch::kKeep}).next(), (std::vector<std::int64_t>{0, 1}));
  EXPECT_THROW(EpochSampler({2, 5, 0, 1, 3, false, LastBatch::kDrop}), ConfigError);
  EXPECT_THROW(EpochSampler({0, 5, 0, 1, 3, false, LastBatch::kKeep}), ConfigError);
}

TEST(EpochSampler, ContinuesFromASavedPosition) {
  EpochSampler a({20, 3, 1, 2, 3, true, LastBatch::kKeep}), b({20, 3, 1, 2, 3, true, LastBatch::kKeep});
  for (int i = 0; i < 6; ++i) a.next();
  b.seek(a.position());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(a.next(), b.next());
}

TEST_F(Files, TheColumnsMayBeKeysOfAnObject) {
  ReadOptions columns;
  columns.inside = "translation";
  columns.text_column = "en";
  columns.label_column = "ro";
  const auto rows =
      read_pairs(write("t.jsonl", R"({"translation": {"en": "A day", "ro": "O zi"}, "id": 1})"
                                  "\n"
                                  R"({"translation": {"ro": "O noapte", "de": "Eine Nacht", "en": "A night"}})"),
                 columns);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].source, "A day");
  EXPECT_EQ(rows[1].source, "A night");
  EXPECT_EQ(rows[1].target, "O noapte");
  const auto without = write("w.jsonl", R"({"translation": {"en": "A day", "ro": "O zi"}})"
                                        "\n"
                                        R"({"translation": {"en": "A day"}})");
  expect_error([&] { read_pairs(without, columns); }, 2, {"no column 'ro'", "columns are en.", "--target_lang"});
  const auto flat = write("f.jsonl", R"({"en": "A day", "ro": "O zi"})");
  expect_error([&] { read_pairs(flat, columns); }, 1, {"'translation'", "found no such column"});
}

TEST(Collate, PadsIdsMasksAndLabels) {
  TokenizedPairs pairs{{{{5, 6, 1}, {9, 1}}, {{7, 1}, {8, 8, 1}}}, 0};
  const auto batch = collate(pairs, {1, 0}, {});
  EXPECT_TRUE(at::equal(batch.input_ids, at::tensor({7, 1, 0, 5, 6, 1}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.attention_mask, at::tensor({1, 1, 0, 1, 1, 1}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({8, 8, 1, 9, 1, -100}, at::kLong).view({2, 3})));
  EXPECT_EQ(batch.label_count, 5);
  EXPECT_TRUE(at::equal(batch.row_ids, at::tensor({1, 0}, at::kLong)));
  const auto fixed = collate(pairs, {0}, {Padding::kMaxLength, 5, 4});
  EXPECT_EQ(fixed.input_ids.sizes(), (std::vector<std::int64_t>{1, 5}));
  EXPECT_EQ(fixed.labels.sizes(), (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(fixed.label_count, 2);
  EXPECT_EQ(fixed.attention_mask.sum().item<std::int64_t>(), 3);
}

TEST(Collate, WithoutRowsIsARowThatCountsForNothing) {
  const TokenizedPairs pairs{{{{5, 6, 1}, {9, 1}}}, 7};
  const auto batch = collate(pairs, {}, {});
  EXPECT_TRUE(at::equal(batch.input_ids, at::tensor({7}, at::kLong).view({1, 1})));
  EXPECT_TRUE(at::equal(batch.attention_mask, at::tensor({0}, at::kLong).view({1, 1})));
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({-100}, at::kLong).view({1, 1})));
  EXPECT_TRUE(at::equal(batch.row_ids, at::tensor({-1}, at::kLong)));
  EXPECT_EQ(batch.label_count, 0);
}

}  // namespace
}  // namespace tessera::data
