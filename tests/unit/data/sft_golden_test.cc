// Parity with TRL 1.16's preparation, packing and collation (tests/data/sft/SOURCES.md).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "chat/jinja/json.h"
#include "chat/jinja/runtime.h"
#include "data/pack.h"
#include "data/sft_dataset.h"
#include "text/tokenizer.h"

namespace tessera::data {
namespace {

using chat::Value;
using Numbers = std::vector<std::int64_t>;

const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/";

Value load(const std::string& name) {
  return chat::parse_json(read_file(kFolder + "sft/" + name + ".json"));
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

std::shared_ptr<const text::Tokenizer> tokenizer() {
  text::TokenizerChanges changes;
  changes.special.eos = "<|im_end|>";
  changes.special.pad = "<|endoftext|>";
  return text::open_tokenizer(kFolder + "tokenizers/reference/chatml/tokenizer.json")->with(changes);
}

SftDataOptions options_of(const Value& kwargs, const std::string& folder) {
  SftDataOptions options;
  options.cache_folder = folder + "/cache";
  options.chat_template = get(load("expect"), "chat_template").text();
  const Value length = get(kwargs, "max_length");
  options.max_length = length.is_none() ? 0 : length.integer()->small();
  options.packing = chat::truth(get(kwargs, "packing"));
  if (const Value strategy = get(kwargs, "packing_strategy"); strategy.is_text())
    options.packing_strategy = strategy.text() == "bfd"         ? PackingStrategy::kBfd
                               : strategy.text() == "bfd_split" ? PackingStrategy::kBfdSplit
                                                                : PackingStrategy::kWrapped;
  options.assistant_only_loss = chat::truth(get(kwargs, "assistant_only_loss"));
  if (const Value only = get(kwargs, "completion_only_loss"); !only.is_undefined())
    options.completion_only_loss = chat::truth(only);
  return options;
}

class SftGolden : public testing::TestWithParam<const char*> {
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
    auto options = options_of(get(golden, "kwargs"), folder_);
    options.dataset_name = folder_;
    options.dataset_num_proc = threads;
    options.cache_folder += std::to_string(threads);
    std::vector<std::string> notes;
    return load_sft_data(options, tokenizer(), notes).train;
  }

  std::string folder_;
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
  SftCollateOptions collate;
  collate.pad_id = 2000;
  const Value kwargs = get(golden, "kwargs");
  collate.padding_free = chat::truth(get(kwargs, "padding_free"));
  if (const Value multiple = get(kwargs, "pad_to_multiple_of"); !multiple.is_undefined())
    collate.pad_to_multiple_of = multiple.integer()->small();
  const auto batch = collate_sft(*dataset, {0, 1, 2, 3}, collate);
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
  for (std::int64_t i = 0; i < 4; ++i) labels += dataset->label_count(i);
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

INSTANTIATE_TEST_SUITE_P(Settings, SftGolden,
                         testing::Values("text", "text_long", "text_bfd", "text_bfd_long", "text_bfd_split",
                                         "text_wrapped", "chat_all", "chat_assistant_only", "chat_assistant_only_bfd",
                                         "chat_wrapped", "chat_from_value", "prompt_completion",
                                         "prompt_completion_all", "prompt_completion_bfd", "prompt_completion_chat",
                                         "text_padding_free", "text_pad_multiple"),
                         [](const auto& info) { return std::string(info.param); });

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
                             strategy == "bfd"         ? PackingStrategy::kBfd
                             : strategy == "bfd_split" ? PackingStrategy::kBfdSplit
                                                       : PackingStrategy::kWrapped);
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
  EXPECT_EQ(compared, 72);
}

}  // namespace
}  // namespace tessera::data
