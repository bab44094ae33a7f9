// Parity with TRL 1.16's preparation, packing and collation (tests/data/sft/SOURCES.md).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/file.h"
#include "chat/jinja/json.h"
#include "chat/jinja/runtime.h"
#include "data/pack.h"
#include "data/sft_dataset.h"
#include "support/goldens.h"
#include "text/tokenizer.h"

namespace tessera::data {
namespace {

using chat::Value;
using Numbers = std::vector<std::int64_t>;

Value load(const std::string& name) {
  return chat::parse_json(read_file((test::goldens("G_sft") / (name + ".json")).string()));
}

Value get(const Value& object, const char* key) {
  return chat::get_item(object, Value(key));
}

Numbers numbers(const Value& list) {
  Numbers out;
  for (const auto& item : chat::iterate(list)) out.push_back(item.integer()->small());
  return out;
}

Numbers numbers(const std::vector<std::int32_t>& values) {
  return {values.begin(), values.end()};
}

Numbers row_of(const at::Tensor& tensor, std::int64_t i) {
  const auto* data = tensor.const_data_ptr<std::int64_t>() + i * tensor.size(1);
  return {data, data + tensor.size(1)};
}

/// The tokenizer that expect.json names, with the special tokens that the reference gave it.
std::shared_ptr<const text::Tokenizer> tokenizer() {
  const Value expect = load("expect");
  text::TokenizerChanges changes;
  changes.special.eos = get(expect, "eos_token").text();
  changes.special.pad = get(expect, "pad_token").text();
  return text::open_tokenizer(test::goldens_tokenizer(get(expect, "tokenizer").text()))->with(changes);
}

PackingStrategy strategy_named(const std::string& name) {
  if (name == "bfd") return PackingStrategy::kBfd;
  if (name == "bfd_split") return PackingStrategy::kBfdSplit;
  if (name == "wrapped") return PackingStrategy::kWrapped;
  throw std::runtime_error("packing strategy '" + name + "' is not known to this test");
}

/// SFTConfig's arguments, each of them.
void apply(const std::string& key, const Value& value, SftDataOptions& data, SftCollateOptions& collate) {
  if (key == "max_length") {
    data.max_length = value.is_none() ? 0 : value.integer()->small();
  } else if (key == "packing") {
    data.packing = chat::truth(value);
  } else if (key == "packing_strategy") {
    data.packing_strategy = strategy_named(value.text());
  } else if (key == "assistant_only_loss") {
    data.assistant_only_loss = chat::truth(value);
  } else if (key == "completion_only_loss") {
    if (!value.is_none()) data.completion_only_loss = chat::truth(value);
  } else if (key == "padding_free") {
    collate.padding_free = chat::truth(value);
  } else if (key == "pad_to_multiple_of") {
    collate.pad_to_multiple_of = value.is_none() ? 0 : value.integer()->small();
  } else {
    throw std::runtime_error("the argument '" + key + "' of SFTConfig is not known to this test");
  }
}

/// The files with rows that were prepared.
std::vector<std::string> settings() {
  std::vector<std::string> names;
  for (const auto& name : test::names_in(test::goldens("G_sft"), ".json"))
    if (!get(load(name), "prepared").is_undefined()) names.push_back(name);
  return names;
}

class SftGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "sft_golden_" + GetParam();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<const SftDataset> prepare(const Value& golden, int threads) {
    std::ofstream file(folder_ + "/train.jsonl");
    for (const auto& row : chat::iterate(get(golden, "input"))) file << chat::dump_json(row) << "\n";
    file.close();
    SftDataOptions options;
    options.cache_folder = folder_ + "/cache";
    options.chat_template = get(load("expect"), "chat_template").text();
    for (const auto& pair : chat::iterate(chat::View{chat::View::kItems, *get(golden, "kwargs").get<chat::DictPtr>()}))
      apply(chat::get_item(pair, std::int64_t{0}).text(), chat::get_item(pair, std::int64_t{1}), options, collate_);
    options.dataset_name = folder_;
    options.dataset_num_proc = threads;
    options.cache_folder += std::to_string(threads);
    std::vector<std::string> notes;
    return load_sft_data(options, tokenizer(), notes).train;
  }

  std::string folder_;
  SftCollateOptions collate_;
};

TEST_P(SftGolden, RowsAndFirstBatchAreEqual) {
  const Value golden = load(GetParam());
  const auto dataset = prepare(golden, 1);
  const auto expected = chat::iterate(get(golden, "prepared"));
  ASSERT_EQ(dataset->size(), static_cast<std::int64_t>(expected.size()));
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    SCOPED_TRACE(i);
    const auto row = dataset->row(i);
    const Value& other = expected[static_cast<std::size_t>(i)];
    EXPECT_EQ(numbers(row.input_ids), numbers(get(other, "input_ids")));
    EXPECT_EQ(numbers(row.labels), numbers(get(other, "labels")));
    if (const Value lengths = get(other, "seq_lengths"); !lengths.is_undefined()) {
      EXPECT_EQ(numbers(row.document_lengths), numbers(lengths));
    }
  }
  collate_.pad_id = tokenizer()->pad_id();
  const std::int64_t rows_of_batch = std::min<std::int64_t>(4, dataset->size());
  std::vector<std::int64_t> first(static_cast<std::size_t>(rows_of_batch));
  std::iota(first.begin(), first.end(), 0);
  const auto batch = collate_sft(*dataset, first, collate_);
  const Value expected_batch = get(golden, "collated_first4");
  for (const auto& [name, tensor] :
       {std::pair{"input_ids", batch.input_ids}, std::pair{"labels", batch.labels},
        std::pair{"attention_mask", batch.attention_mask}, std::pair{"position_ids", batch.position_ids}}) {
    const Value other = get(expected_batch, name);
    if (other.is_undefined()) continue;
    SCOPED_TRACE(name);
    ASSERT_TRUE(tensor.defined());
    const auto rows = chat::iterate(other);
    ASSERT_EQ(tensor.size(0), static_cast<std::int64_t>(rows.size()));
    for (std::int64_t i = 0; i < tensor.size(0); ++i)
      EXPECT_EQ(row_of(tensor, i), numbers(rows[static_cast<std::size_t>(i)]));
  }
  std::int64_t labels = 0;
  for (std::int64_t i = 0; i < rows_of_batch; ++i) labels += dataset->label_count(i);
  EXPECT_EQ(batch.label_count, labels);
}

TEST_P(SftGolden, WithoutRowsABatchCountsForNothing) {
  const auto dataset = prepare(load(GetParam()), 1);
  for (const bool padding_free : {false, true}) {
    const auto batch = collate_sft(*dataset, {}, {.pad_id = 9, .pad_to_multiple_of = 4, .padding_free = padding_free});
    EXPECT_EQ(row_of(batch.input_ids, 0), (std::vector<std::int64_t>{9, 9, 9, 9}));
    EXPECT_EQ(row_of(batch.labels, 0), (std::vector<std::int64_t>{-100, -100, -100, -100}));
    EXPECT_EQ(row_of(batch.attention_mask, 0), (std::vector<std::int64_t>{0, 0, 0, 0}));  // nobody sees it
    EXPECT_EQ(batch.row_ids.numel(), 1);
    EXPECT_EQ(batch.label_count, 0);
  }
}

TEST_P(SftGolden, RowsDoNotDependOnTheNumberOfThreads) {
  const Value golden = load(GetParam());
  const auto one = prepare(golden, 1), three = prepare(golden, 3);
  ASSERT_EQ(one->size(), three->size());
  for (std::int64_t i = 0; i < one->size(); ++i) EXPECT_EQ(one->row(i).labels, three->row(i).labels);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SftGolden);
INSTANTIATE_TEST_SUITE_P(Settings, SftGolden, testing::ValuesIn(settings()),
                         [](const auto& info) { return test::as_test_name(info.param); });

std::vector<SftRow> packable(const Value& input) {
  const auto ids = chat::iterate(get(input, "input_ids")), labels = chat::iterate(get(input, "labels"));
  std::vector<SftRow> rows;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto a = numbers(ids[i]), b = numbers(labels[i]);
    rows.push_back({{a.begin(), a.end()}, {b.begin(), b.end()}, {static_cast<std::int32_t>(a.size())}});
  }
  return rows;
}

TEST(PackGolden, AllStrategiesPackAlike) {
  if (!std::filesystem::exists(test::goldens("G_sft") / "pack_only.json")) return;
  const auto cases = chat::iterate(get(load("pack_only"), "cases"));
  std::map<std::int64_t, std::vector<SftRow>> inputs;
  for (const auto& one : cases)
    if (const Value input = get(one, "input"); !input.is_undefined())
      inputs[get(one, "trial").integer()->small()] = packable(input);
  int compared = 0;
  for (const auto& one : cases) {
    const Value out = get(one, "out");
    if (out.is_undefined()) continue;
    const std::string strategy = get(one, "strategy").text();
    SCOPED_TRACE(chat::dump_json(get(one, "trial")) + strategy + chat::dump_json(get(one, "seq_length")));
    ASSERT_TRUE(get(out, "error").is_undefined());
    const auto packed = pack(inputs.at(get(one, "trial").integer()->small()), get(one, "seq_length").integer()->small(),
                             strategy_named(strategy));
    const auto ids = chat::iterate(get(out, "input_ids")), labels = chat::iterate(get(out, "labels"));
    ASSERT_EQ(packed.size(), ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(numbers(packed[i].input_ids), numbers(ids[i]));
      EXPECT_EQ(numbers(packed[i].labels), numbers(labels[i]));
      if (const Value lengths = get(out, "seq_lengths"); !lengths.is_undefined()) {
        EXPECT_EQ(numbers(packed[i].document_lengths), numbers(chat::iterate(lengths)[i]));
      }
    }
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace tessera::data
