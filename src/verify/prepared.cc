// Rows and batches of preference training, as TRL's trainers prepare and collate them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/json_text.h"
#include "base/open_file.h"
#include "data/preference_dataset.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"
#include "verify/reference_json.h"
#include "verify/scratch_folder.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using data::PreferenceForm;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

PreferenceForm form_of(const std::string& trainer) {
  if (trainer == "DPOTrainer") return PreferenceForm::kPairs;
  if (trainer == "KTOTrainer") return PreferenceForm::kUnpaired;
  if (trainer == "RewardTrainer") return PreferenceForm::kWhole;
  if (trainer == "ORPOTrainer" || trainer == "CPOTrainer") return PreferenceForm::kOwnPrompt;
  throw ConfigError("the trainer '" + trainer + "' is not known", "trainer");
}

/// What a file says, as this program's settings.
struct Prepared {
  data::PreferenceDataOptions options;
  data::PreferenceCollateOptions collate;
};

Prepared settings_of(const json& file, const json& expect) {
  Prepared out;
  auto& o = out.options;
  o.form = form_of(file.at("trainer"));
  const bool cuts = o.form == PreferenceForm::kOwnPrompt;
  o.max_length = cuts ? 512 : 0;
  o.chat_template = expect.at("chat_template");
  for (const auto& [key, value] : file.at("kwargs").items()) {
    if (key == "max_length") {
      o.max_length = value.is_null() ? (cuts ? 512 : 0) : value.get<std::int64_t>();
    } else if (key == "truncation_mode") {
      o.truncation_mode = value == "keep_end" ? data::TruncationMode::kKeepEnd : data::TruncationMode::kKeepStart;
    } else if (key == "pad_to_multiple_of") {
      out.collate.pad_to_multiple_of = value;
    } else {
      throw ConfigError("kwargs." + key + " = " + json_text(value) + " is not known; this case is not compared", key);
    }
  }
  if (o.form == PreferenceForm::kPairs || o.form == PreferenceForm::kUnpaired) out.collate.max_length = o.max_length;
  out.collate.truncation_mode = o.truncation_mode;
  return out;
}

void add_equal(Comparison& table, const std::string& name, const std::vector<std::int64_t>& actual,
               const std::vector<std::int64_t>& expected) {
  if (actual == expected) return table.add(name, 1, 1, 0);
  const auto at = std::mismatch(actual.begin(), actual.end(), expected.begin(), expected.end()).first - actual.begin();
  table.fail(name, fmt::format("has {} numbers, the reference {}; they differ from place {} on", actual.size(),
                               expected.size(), at));
}

std::vector<std::int64_t> wide(const Ids& a, const Ids& b = {}) {
  std::vector<std::int64_t> out(a.begin(), a.end());
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

/// The labels that TRL gives to a side of ORPO and CPO: of prompts -100.
std::vector<std::int64_t> labels_of(const Ids& prompt, const Ids& answer) {
  std::vector<std::int64_t> out(prompt.size(), -100);
  out.insert(out.end(), answer.begin(), answer.end());
  return out;
}

void compare_row(Comparison& table, const std::string& name, const data::PreferenceRow& row, const json& expected,
                 PreferenceForm form) {
  const auto add = [&](const char* key, const std::vector<std::int64_t>& actual) {
    add_equal(table, "rows " + name + " " + key, actual, expected.at(key).get<std::vector<std::int64_t>>());
  };
  switch (form) {
    case PreferenceForm::kPairs:
      add("prompt_ids", wide(row.prompt));
      add("chosen_ids", wide(row.chosen));
      return add("rejected_ids", wide(row.rejected));
    case PreferenceForm::kUnpaired:
      add("prompt_ids", wide(row.prompt));
      add("completion_ids", wide(row.chosen));
      return table.add("rows " + name + " label", row.label, expected.at("label").get<bool>(), 0);
    case PreferenceForm::kWhole:
      add("chosen_ids", wide(row.chosen));
      return add("rejected_ids", wide(row.rejected));
    case PreferenceForm::kOwnPrompt:
      add("chosen_input_ids", wide(row.prompt, row.chosen));
      add("rejected_input_ids", wide(row.rejected_prompt, row.rejected));
      add("chosen_labels", labels_of(row.prompt, row.chosen));
      return add("rejected_labels", labels_of(row.rejected_prompt, row.rejected));
  }
}

void compare_tensor(Comparison& table, const std::string& name, const at::Tensor& actual, const json& collated,
                    const std::string& key) {
  if (!collated.contains(key)) return;
  std::vector<std::int64_t> flat;
  const auto expected = collated.at(key).get<std::vector<std::vector<std::int64_t>>>();
  for (const auto& row : expected) flat.insert(flat.end(), row.begin(), row.end());
  const auto rows = static_cast<std::int64_t>(expected.size());
  table.add("batches " + name + " " + key, actual,
            at::tensor(flat, at::TensorOptions().dtype(at::kLong)).view({rows, -1}), 0);
}

/// The first rows as one batch.
void compare_batch(Comparison& table, const std::string& name, const data::PreferenceDataset& rows, const json& file,
                   const data::PreferenceCollateOptions& collate, std::int64_t group) {
  constexpr std::int64_t kFirst = 4;
  const auto& collated = file.at("collated_first4");
  const auto form = form_of(file.at("trainer"));
  if (form == PreferenceForm::kOwnPrompt) return;  // TRL pads each side by itself
  std::vector<data::PreferenceRow> first;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < std::min(kFirst, rows.size()); ++i) {
    first.push_back(rows.row(i));
    numbers.push_back(i);
  }
  const bool unpaired = form == PreferenceForm::kUnpaired;
  const auto batch = unpaired ? data::collate_unpaired(first, collate) : data::collate_pairs(first, collate);
  compare_tensor(table, name, batch.input_ids, collated, "input_ids");
  compare_tensor(table, name, batch.attention_mask, collated, "attention_mask");
  compare_tensor(table, name, batch.completion_mask, collated, "completion_mask");
  if (!unpaired) return;
  const auto mismatched = data::collate_mismatched(rows, numbers, group, collate);
  compare_tensor(table, name, mismatched.input_ids, collated, "KL_input_ids");
  compare_tensor(table, name, mismatched.completion_mask, collated, "KL_completion_mask");
}

/// Among the files of the set's tokenizers: tokenizers/NAME or data/tokenizers/NAME beside a folder above.
std::string tokenizer_place(const VerifyOptions& options, const std::string& name) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const auto folder = fs::absolute(options.folder).lexically_normal();
  for (auto above = folder; above.has_relative_path(); above = above.parent_path())
    for (const char* place : {"tokenizers", "data/tokenizers"})
      if (is_there((above / place / name).string())) return (above / place / name).string();
  throw ConfigError("'" + options.folder + "' was prepared with the tokenizer '" + name +
                        "', which lies in no tokenizers/ or data/tokenizers/ beside it or a folder above; give its "
                        "file or folder with --tokenizer",
                    "tokenizer");
}

}  // namespace

bool verify_prepared(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const fs::path folder = options.folder;
  const auto expect = read_reference_json((folder / "expect.json").string());
  text::TokenizerChanges changes;
  changes.special.eos = expect.at("eos_token");
  changes.special.pad = expect.at("pad_token");
  const std::shared_ptr<const text::Tokenizer> tokenizer =
      text::open_tokenizer(tokenizer_place(options, expect.at("tokenizer")))->with(changes);
  const ScratchFolder scratch;
  Comparison table;
  for (const auto& [name, rows_left] : expect.at("status").items()) {
    const auto file = read_reference_json((folder / (name + ".json")).string());
    auto [settings, collate] = settings_of(file, expect);
    std::string lines;
    for (const auto& row : file.at("input")) lines += json_text(row) + "\n";
    settings.dataset_name = scratch / (name + ".jsonl");
    settings.cache_folder = scratch / "cache";
    write_file_atomically(settings.dataset_name, lines);
    collate.pad_id = tokenizer->pad_id();
    std::vector<std::string> notes;
    const auto rows = data::load_preference_data(settings, tokenizer, notes).train;
    const auto& prepared = file.at("prepared");
    table.add("rows " + name + " left", static_cast<double>(rows->size()), static_cast<double>(prepared.size()), 0);
    if (rows->size() != static_cast<std::int64_t>(prepared.size())) continue;
    for (std::int64_t i = 0; i < rows->size(); ++i)
      compare_row(table, fmt::format("{} {}", name, i), rows->row(i), prepared.at(static_cast<std::size_t>(i)),
                  settings.form);
    compare_batch(table, name, *rows, file, collate, expect.at("per_device_train_batch_size"));
  }
  table.merge(*group);
  out << fmt::format("{} sets of preference data prepared as TRL does\n", expect.at("status").size());
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
