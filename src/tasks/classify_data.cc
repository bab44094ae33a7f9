#include "tasks/classify_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/crc32c.h"
#include "data/collate.h"
#include "families/config_reader.h"
#include "models/gguf_model.h"
#include "tasks/adapter_classes.h"
#include "tasks/glue.h"
#include "tasks/training_tokenizer.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using data::TextPair;
using Rows = std::vector<TextPair>;
using families::ProblemType;

template <class Number>
std::optional<Number> whole_number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool is_number(const std::string& text) {
  const auto value = whole_number<double>(text);
  return value && *value - *value == 0;  // neither infinite nor NaN
}

/// Of a list each label ends with a line feed (data::read_pairs); of a text they stand between separators.
std::vector<std::string> labels_in(const std::string& text, const std::string& separator) {
  std::vector<std::string> out;
  const bool is_list = text.ends_with('\n');
  const std::string& between = is_list ? "\n" : separator;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(between, at), text.size());
    auto label = text.substr(at, end - at);
    if (!is_list) {
      label.erase(0, label.find_first_not_of(' '));
      label.erase(label.find_last_not_of(' ') + 1);
    }
    if (!label.empty()) out.push_back(std::move(label));
    at = end + between.size();
  }
  return out;
}

ProblemType problem_of(const ClassifyOptions& o, const std::optional<KnownClasses>& known,
                       const std::vector<TextPair>& rows) {
  if (o.problem_type == "regression") return ProblemType::kRegression;
  if (o.problem_type == "single_label_classification") return ProblemType::kSingleLabel;
  if (o.problem_type == "multi_label_classification") return ProblemType::kMultiLabel;
  if (known && known->config.problem != ProblemType::kByLabels) return known->config.problem;
  const auto label_is = [&](const auto& test) {
    return std::any_of(rows.begin(), rows.end(), [&](const TextPair& row) { return test(row.target); });
  };
  if (label_is([](const std::string& t) { return t.ends_with('\n'); })) return ProblemType::kMultiLabel;
  const bool numbers = !label_is([](const std::string& t) { return !is_number(t); });
  const bool whole = !label_is([](const std::string& t) { return !whole_number<std::int64_t>(t); });
  if (numbers && (!whole || (known && known->config.num_labels == 1))) return ProblemType::kRegression;
  return ProblemType::kSingleLabel;
}

class Labels {
 public:
  /// of_task: the classes of a task of GLUE, in its order; empty: the data says which there are.
  Labels(const ClassifyOptions& o, const std::optional<KnownClasses>& known, const std::vector<TextPair>& rows,
         ProblemType problem, const std::vector<std::string>& of_task)
      : problem_(problem), separator_(o.label_separator) {
    std::set<std::string> found;
    for (const auto& row : rows) {
      auto labels = of(row);
      if (problem == ProblemType::kMultiLabel) check_are_names(row, labels);
      for (auto& label : labels) found.insert(std::move(label));
    }
    names_ =
        problem == ProblemType::kRegression ? std::vector<std::string>{"score"} : names_of(o, known, of_task, found);
    for (std::size_t i = 0; i < names_.size(); ++i) index_[names_[i]] = static_cast<std::int64_t>(i);
  }

  const std::vector<std::string>& names() const { return names_; }

  at::Tensor tensor(const std::vector<TextPair>& rows) const {
    const auto n = static_cast<std::int64_t>(rows.size()), k = static_cast<std::int64_t>(names_.size());
    if (problem_ == ProblemType::kSingleLabel) {
      auto out = at::empty({n}, at::kLong);
      for (std::int64_t i = 0; i < n; ++i)
        out.mutable_data_ptr<std::int64_t>()[i] =
            index(rows[static_cast<std::size_t>(i)], of(rows[static_cast<std::size_t>(i)])[0]);
      return out;
    }
    auto out = problem_ == ProblemType::kRegression ? at::zeros({n}, at::kFloat) : at::zeros({n, k}, at::kFloat);
    auto* values = out.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < n; ++i) {
      const auto& row = rows[static_cast<std::size_t>(i)];
      if (problem_ == ProblemType::kRegression) {
        if (!is_number(row.target)) refuse(row, fmt::format("'{}' is no number", row.target));
        values[i] = static_cast<float>(*whole_number<double>(row.target));
      } else {
        for (const auto& label : of(row)) values[i * k + index(row, label)] = 1;
      }
    }
    return out;
  }

 private:
  [[noreturn]] static void refuse(const TextPair& row, const std::string& what) {
    throw DataError(fmt::format("{}:{}: the label {}", row.file, row.line, what), row.file, row.line);
  }

  std::vector<std::string> of(const TextPair& row) const {
    if (problem_ == ProblemType::kMultiLabel) return labels_in(row.target, separator_);
    if (row.target.ends_with('\n'))
      refuse(row, "is a list; --problem_type multi_label_classification takes several labels of a text");
    return {row.target};
  }

  /// A list names the classes of its text; one of numbers may be meant as a vector, of which nothing would be learnt.
  static void check_are_names(const TextPair& row, const std::vector<std::string>& labels) {
    const std::set<std::string> truths = {"0", "1", "False", "True"};
    std::set<std::string> seen;
    for (const auto& label : labels) {
      if (is_number(label) && !whole_number<std::int64_t>(label))
        refuse(row, fmt::format("has the number {} in a list; a list names the classes of its text (of a vector of "
                                "zeros and ones: the places that are 1), and a regression has one number a row",
                                label));
      if (!seen.insert(label).second && truths.contains(label))
        refuse(row, fmt::format("has {} twice; a list names the classes of its text, each once: of a vector of zeros "
                                "and ones list the places that are 1, [1, 2] for [0, 1, 1]",
                                label));
    }
  }

  /// The classifier's own, or the task's, or those of the data in order: by number where all are numbers.
  static std::vector<std::string> names_of(const ClassifyOptions& o, const std::optional<KnownClasses>& known,
                                           const std::vector<std::string>& of_task,
                                           const std::set<std::string>& found) {
    if (known && !known->names.empty() && !o.ignore_mismatched_sizes) return known->names;
    if (!of_task.empty()) return of_task;
    std::vector<std::string> names(found.begin(), found.end());
    const bool numbers =
        std::all_of(names.begin(), names.end(), [](const auto& name) { return whole_number<std::int64_t>(name); });
    if (!numbers) return names;
    std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
      return *whole_number<std::int64_t>(a) < *whole_number<std::int64_t>(b);
    });
    // A classifier without names: its classes are 0, 1, ..., whichever of them the data has.
    const auto least = known && !o.ignore_mismatched_sizes ? known->config.num_labels : 0;
    const bool are_indices = names.empty() || (*whole_number<std::int64_t>(names.front()) >= 0 &&
                                               *whole_number<std::int64_t>(names.back()) < least);
    if (are_indices) {
      names.clear();
      for (std::int64_t i = 0; i < least; ++i) names.push_back(std::to_string(i));
    }
    return names;
  }

  std::int64_t index(const TextPair& row, const std::string& label) const {
    const auto found = index_.find(label);
    if (found != index_.end()) return found->second;
    // Names that are numbers themselves: the label 0 beside a class "1" is no place, which "1" would be, too.
    const auto number = std::any_of(names_.begin(), names_.end(), &whole_number<std::int64_t>)
                            ? std::nullopt
                            : whole_number<std::int64_t>(label);
    if (number && *number >= 0 && *number < static_cast<std::int64_t>(names_.size())) return *number;
    refuse(row, fmt::format("'{}' is none of the model's classes ({}); --ignore_mismatched_sizes true makes a head for "
                            "those of the data",
                            label, fmt::join(names_, ", ")));
  }

  ProblemType problem_;
  std::string separator_;
  std::vector<std::string> names_;
  std::map<std::string, std::int64_t> index_;
};

std::shared_ptr<const text::Tokenizer> with_padding(const std::string& path, const std::string& pad_token) {
  auto tokenizer = text::open_tokenizer(path);
  if (pad_token.empty() && tokenizer->pad_id() >= 0) return tokenizer;
  text::TokenizerChanges changes;
  changes.special.pad = pad_token.empty() ? eos_as_padding(tokenizer->special_tokens().eos, path) : pad_token;
  const auto before = tokenizer->vocab_size();
  tokenizer = tokenizer->with(changes);
  if (tokenizer->vocab_size() > before)
    throw ConfigError("--pad_token '" + changes.special.pad + "' is no token of the tokenizer '" + path + "'",
                      "pad_token");
  return tokenizer;
}

}  // namespace

namespace {

/// The names but for LABEL_0, LABEL_1, ..., which name nothing.
std::vector<std::string> own_names(std::vector<std::string> names) {
  bool generic = true;
  for (std::size_t i = 0; i < names.size(); ++i) generic = generic && names[i] == "LABEL_" + std::to_string(i);
  return generic ? std::vector<std::string>() : names;
}

std::optional<KnownClasses> classes_of_folder(const std::string& model_folder) {
  const auto json = models::read_model_config(model_folder);
  const families::ConfigReader in(json, model_folder + "/config.json");
  if (!families::is_classifier(in)) return std::nullopt;
  KnownClasses known{families::parse_classifier(in), {}};
  if (!in.has("id2label") || !in.at("id2label").is_object()) return known;
  for (std::int64_t i = 0; i < known.config.num_labels; ++i) {
    const auto entry = in.at("id2label").find(std::to_string(i));
    if (entry == in.at("id2label").end() || !entry->is_string()) return {{known.config, {}}};
    known.names.push_back(*entry);
  }
  known.names = own_names(std::move(known.names));
  return known;
}

/// Says in the notes how many texts were cut.
class Texts {
 public:
  Texts(ClassData& data, std::int64_t max_length) : data_(data), cut_at_{.max_length = max_length} {}

  void tokenize(const std::vector<TextPair>& rows, ClassRows& to) {
    for (const auto& row : rows) {
      auto [ids, offsets, type_ids] = data::encode_and_count(*data_.tokenizer, row.source, row.second, cut_at_, cut_);
      if (ids.empty()) ids.push_back(static_cast<std::int32_t>(data_.tokenizer->pad_id()));
      to.ids.push_back(std::move(ids));
      const bool has_types = data_.tokenizer->gives_type_ids() &&
                             std::any_of(type_ids.begin(), type_ids.end(), [](std::int32_t id) { return id != 0; });
      to.type_ids.push_back(has_types ? std::move(type_ids) : std::vector<std::int32_t>());
    }
  }
  void note_cut() { data::note_cut({cut_, "text", "--max_length", cut_at_.max_length}, data_.notes); }

 private:
  ClassData& data_;
  text::EncodeOptions cut_at_;
  std::int64_t cut_ = 0;
};

}  // namespace

std::optional<KnownClasses> known_classes(const std::string& model_folder, const std::string& adapter_folder) {
  auto known = classes_of_folder(model_folder);
  const auto of_adapter = adapter_folder.empty() ? std::nullopt : adapter_classes(adapter_folder);
  if (!of_adapter || (known && known->config.num_labels == std::ssize(of_adapter->labels))) return known;
  return KnownClasses{head_for(*of_adapter).config, own_names(of_adapter->labels)};
}

namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// The classes of a task's numbers: as the model calls them, where its names differ in no more than their case.
std::vector<std::string> classes_of(const GlueTask& task, const std::optional<KnownClasses>& known) {
  auto names = task.labels;
  for (auto& name : names)
    for (const auto& own : known ? known->names : std::vector<std::string>())
      if (lower(own) == name) name = own;
  return names;
}

/// MNLI's rows of other genres than those it trains on.
std::vector<TextPair> mismatched_rows(const ClassifyOptions& o, const data::ReadOptions& columns,
                                      const std::string& split, std::vector<std::string>& notes) {
  const data::DatasetName dataset{o.dataset_path, o.dataset_config};
  if (o.task_name != "mnli" || o.dataset_path.empty()) return {};
  if (data::find_split_files(dataset, "train," + split).back().files.empty()) return {};
  auto rows = data::read_split(dataset, split, columns);
  notes.push_back(fmt::format("{}: {} ({} rows)", split, rows.front().file, rows.size()));
  return rows;
}

}  // namespace

ClassData load_class_data(const ClassifyOptions& o, const std::string& tokenizer_path,
                          const std::optional<KnownClasses>& known) {
  ClassData d;
  auto columns = o.columns;
  const auto* task = find_glue_task(o.task_name);
  if (task) d.measures = task->measures;
  if (task && columns.label_names.empty()) columns.label_names = classes_of(*task, known);
  auto splits = read_labelled_rows(o, columns, o.training.seed);
  d.notes = splits.notes;
  auto all = splits.train;  // the classes are those of all rows, however few are trained on
  all.insert(all.end(), splits.validation.begin(), splits.validation.end());
  data::keep_first(splits.train, o.max_train_samples);
  data::keep_first(splits.validation, o.max_eval_samples);
  d.problem = problem_of(o, known, all);
  const Labels labels(o, known, all, d.problem, task ? columns.label_names : std::vector<std::string>());
  d.names = labels.names();
  if (o.dataset_path.empty() && !known)
    throw ConfigError("'" + o.model_name_or_path +
                          "' is no classifier yet, and there are no rows that say which classes there are; name them "
                          "with --dataset_name",
                      "dataset_name");
  if (d.problem == ProblemType::kSingleLabel && d.names.size() < 2)
    throw DataError(fmt::format("'{}' has one label only ('{}'): there is nothing to tell apart", o.dataset_path,
                                d.names.empty() ? "" : d.names[0]),
                    o.dataset_path);
  d.tokenizer = with_padding(tokenizer_path, o.pad_token);
  Texts texts(d, o.max_length);
  auto mismatched = o.validation_file.empty() ? mismatched_rows(o, columns, "validation_mismatched", d.notes) : Rows();
  data::keep_first(mismatched, o.max_eval_samples);
  for (auto [rows, to] : {std::pair(&splits.train, &d.train), std::pair(&splits.validation, &d.validation),
                          std::pair(&mismatched, &d.mismatched)}) {
    texts.tokenize(*rows, *to);
    to->labels = labels.tensor(*rows);
  }
  if (o.predict.do_predict) {
    columns.without_labels = true;
    texts.tokenize(read_test_rows(o, columns, d.notes), d.test);
    auto others = o.predict.test_file.empty() ? mismatched_rows(o, columns, "test_mismatched", d.notes) : Rows();
    data::keep_first(others, o.predict.max_predict_samples);
    texts.tokenize(others, d.mismatched_test);
    for (auto* rows : {&d.test, &d.mismatched_test}) rows->labels = at::zeros({rows->size()}, at::kLong);
  }
  texts.note_cut();
  return d;
}

data::RowMark ClassRows::mark(std::int64_t i) const {
  const auto& tokens = ids.at(static_cast<std::size_t>(i));
  const at::Tensor label = labels.select(0, i).contiguous();
  auto checksum = crc32c(tokens.data(), tokens.size() * sizeof(std::int32_t));
  const auto& types = type_ids.at(static_cast<std::size_t>(i));
  checksum = crc32c(types.data(), types.size() * sizeof(std::int32_t), checksum);
  return {static_cast<std::int64_t>(tokens.size()), crc32c(label.const_data_ptr(), label.nbytes(), checksum)};
}

ClassBatch collate_classes(const ClassRows& rows, const std::vector<std::int64_t>& numbers, std::int64_t pad_id,
                           std::int64_t length) {
  ClassBatch out;
  out.is_empty = numbers.empty();
  const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(numbers.size()));
  std::int64_t longest = std::max<std::int64_t>(1, length);
  for (const auto row : numbers)
    longest = std::max(longest, static_cast<std::int64_t>(rows.ids[static_cast<std::size_t>(row)].size()));
  out.input_ids = at::full({count, longest}, pad_id, at::kLong);
  out.attention_mask = at::zeros({count, longest}, at::kLong);
  const auto types_of = [&](std::int64_t row) -> const auto& { return rows.type_ids[static_cast<std::size_t>(row)]; };
  if (std::any_of(numbers.begin(), numbers.end(), [&](std::int64_t row) { return !types_of(row).empty(); }))
    out.token_type_ids = at::zeros({count, longest}, at::kLong);
  auto* ids = out.input_ids.mutable_data_ptr<std::int64_t>();
  auto* mask = out.attention_mask.mutable_data_ptr<std::int64_t>();
  auto* types = out.token_type_ids.defined() ? out.token_type_ids.mutable_data_ptr<std::int64_t>() : nullptr;
  if (out.is_empty) mask[0] = 1;
  for (const auto number : numbers) {
    const auto& row = rows.ids[static_cast<std::size_t>(number)];
    std::copy(row.begin(), row.end(), ids);
    std::fill_n(mask, row.size(), 1);
    if (types) {
      std::copy(types_of(number).begin(), types_of(number).end(), types);
      types += longest;
    }
    ids += longest, mask += longest;
  }
  const std::vector<std::int64_t> chosen = out.is_empty ? std::vector<std::int64_t>{0} : numbers;
  out.labels = rows.labels.index_select(0, at::tensor(chosen, at::TensorOptions().dtype(at::kLong)));
  out.row_ids = out.is_empty ? at::full({1}, -1, at::kLong) : at::tensor(numbers, at::TensorOptions().dtype(at::kLong));
  return out;
}

}  // namespace tessera::tasks
