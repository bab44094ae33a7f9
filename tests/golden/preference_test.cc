// Parity with the rows and batches that TRL 1.16 prepares for preference training (family K, "prep").
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/preference_dataset.h"
#include "support/goldens.h"
#include "support/temp_folder.h"
#include "text/tokenizer.h"

namespace tessera::data {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::filesystem::path prep() {
  return test::goldens("K_preference") / "prep";
}

PreferenceForm form_of(const std::string& trainer) {
  if (trainer == "DPOTrainer") return PreferenceForm::kPairs;
  if (trainer == "KTOTrainer") return PreferenceForm::kUnpaired;
  if (trainer == "RewardTrainer") return PreferenceForm::kWhole;
  if (trainer == "ORPOTrainer" || trainer == "CPOTrainer") return PreferenceForm::kOwnPrompt;
  throw std::runtime_error("the trainer '" + trainer + "' is not known to this test");
}

/// What a file says, as this program's settings.
struct Prepared {
  PreferenceDataOptions options;
  PreferenceCollateOptions collate;
};

Prepared settings_of(const json& file, const json& expect) {
  Prepared out;
  out.options.form = form_of(file.at("trainer"));
  const bool cuts = out.options.form == PreferenceForm::kOwnPrompt;
  out.options.max_length = cuts ? 512 : 0;
  out.options.chat_template = expect.at("chat_template");
  for (const auto& [key, value] : file.at("kwargs").items()) {
    if (key == "max_length") {
      out.options.max_length = value.is_null() ? (cuts ? 512 : 0) : value.get<std::int64_t>();
    } else if (key == "truncation_mode") {
      out.options.truncation_mode = value == "keep_end" ? TruncationMode::kKeepEnd : TruncationMode::kKeepStart;
    } else if (key == "pad_to_multiple_of") {
      out.collate.pad_to_multiple_of = value;
    } else {
      throw std::runtime_error("the argument '" + key + "' is not known to this test");
    }
  }
  if (out.options.form == PreferenceForm::kPairs || out.options.form == PreferenceForm::kUnpaired)
    out.collate.max_length = out.options.max_length;
  out.collate.truncation_mode = out.options.truncation_mode;
  return out;
}

Ids joined_ids(const Ids& a, const Ids& b) {
  Ids out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

void expect_row(const PreferenceRow& row, const json& expected, PreferenceForm form, const std::string& what) {
  const auto ids = [&](const char* key) { return expected.at(key).get<Ids>(); };
  switch (form) {
    case PreferenceForm::kPairs:
      EXPECT_EQ(row.prompt, ids("prompt_ids")) << what;
      EXPECT_EQ(row.chosen, ids("chosen_ids")) << what;
      EXPECT_EQ(row.rejected, ids("rejected_ids")) << what;
      break;
    case PreferenceForm::kUnpaired:
      EXPECT_EQ(row.prompt, ids("prompt_ids")) << what;
      EXPECT_EQ(row.chosen, ids("completion_ids")) << what;
      EXPECT_EQ(row.label, expected.at("label").get<bool>()) << what;
      break;
    case PreferenceForm::kWhole:
      EXPECT_EQ(row.chosen, ids("chosen_ids")) << what;
      EXPECT_EQ(row.rejected, ids("rejected_ids")) << what;
      break;
    case PreferenceForm::kOwnPrompt: {
      EXPECT_EQ(joined_ids(row.prompt, row.chosen), ids("chosen_input_ids")) << what;
      EXPECT_EQ(joined_ids(row.rejected_prompt, row.rejected), ids("rejected_input_ids")) << what;
      const auto labels = ids("chosen_labels"), others = ids("rejected_labels");
      EXPECT_EQ(static_cast<std::size_t>(std::count(labels.begin(), labels.end(), -100)), row.prompt.size()) << what;
      EXPECT_EQ(static_cast<std::size_t>(std::count(others.begin(), others.end(), -100)), row.rejected_prompt.size())
          << what;
      break;
    }
  }
}

void expect_tensor(const at::Tensor& actual, const json& collated, const std::string& key, const std::string& what) {
  if (!collated.contains(key)) return;
  const auto expected = collated.at(key).get<std::vector<std::vector<std::int64_t>>>();
  ASSERT_EQ(actual.size(0), static_cast<std::int64_t>(expected.size())) << what << " " << key;
  ASSERT_EQ(actual.size(1), static_cast<std::int64_t>(expected[0].size())) << what << " " << key;
  for (std::size_t r = 0; r < expected.size(); ++r) {
    const auto row = actual[static_cast<std::int64_t>(r)].contiguous();
    const std::vector<std::int64_t> found(row.const_data_ptr<std::int64_t>(),
                                          row.const_data_ptr<std::int64_t>() + row.numel());
    EXPECT_EQ(found, expected[r]) << what << " " << key << " row " << r;
  }
}

class PreparedGolden : public testing::TestWithParam<std::string> {};

TEST_P(PreparedGolden, RowsAndBatchesAreTrls) {
  const json expect = test::read_golden(prep() / "expect.json"),
             file = test::read_golden(prep() / (GetParam() + ".json"));
  text::TokenizerChanges changes;
  changes.special.eos = expect.at("eos_token");
  changes.special.pad = expect.at("pad_token");
  const std::shared_ptr<const text::Tokenizer> tokenizer =
      text::open_tokenizer(test::goldens_tokenizer(expect.at("tokenizer")))->with(changes);
  auto [options, collate] = settings_of(file, expect);
  const test::TempFolder folder("prepared");
  std::ofstream data(folder.path() + "/train.jsonl");
  for (const auto& row : file.at("input")) data << row.dump() << "\n";
  data.close();
  options.dataset_name = folder.path() + "/train.jsonl";
  options.cache_folder = folder.path() + "/cache";
  collate.pad_id = tokenizer->pad_id();
  std::vector<std::string> notes;
  const auto rows = load_preference_data(options, tokenizer, notes).train;
  const auto& prepared = file.at("prepared");
  ASSERT_EQ(rows->size(), static_cast<std::int64_t>(prepared.size()));
  for (std::int64_t i = 0; i < rows->size(); ++i)
    expect_row(rows->row(i), prepared.at(static_cast<std::size_t>(i)), options.form,
               GetParam() + " row " + std::to_string(i));

  const auto& collated = file.at("collated_first4");
  std::vector<PreferenceRow> first;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(4, rows->size()); ++i) {
    first.push_back(rows->row(i));
    numbers.push_back(i);
  }
  const bool unpaired = options.form == PreferenceForm::kUnpaired;
  const auto batch = unpaired ? collate_unpaired(first, collate) : collate_pairs(first, collate);
  if (options.form == PreferenceForm::kOwnPrompt) return;  // TRL pads each side by itself
  expect_tensor(batch.input_ids, collated, "input_ids", GetParam());
  expect_tensor(batch.attention_mask, collated, "attention_mask", GetParam());
  expect_tensor(batch.completion_mask, collated, "completion_mask", GetParam());
  if (!unpaired) return;
  const auto group = expect.at("per_device_train_batch_size").get<std::int64_t>();
  const auto mismatched = collate_mismatched(*rows, numbers, group, collate);
  expect_tensor(mismatched.input_ids, collated, "KL_input_ids", GetParam());
  expect_tensor(mismatched.completion_mask, collated, "KL_completion_mask", GetParam());
}

std::vector<std::string> prepared_names() {
  auto names = test::names_in(prep(), ".json");
  std::erase(names, "expect");
  return names;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PreparedGolden);
INSTANTIATE_TEST_SUITE_P(Set, PreparedGolden, testing::ValuesIn(prepared_names()),
                         [](const auto& info) { return test::as_test_name(info.param); });

}  // namespace
}  // namespace tessera::data
