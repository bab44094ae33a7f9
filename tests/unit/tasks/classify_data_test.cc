// Which rows and classes a classifier's data have.
#include "tasks/classify_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/program.h"
#include "support/temp_folder.h"
#include "tasks/classify_metrics.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

class ClassDataOf : public testing::Test {
 protected:
  ClassDataOf() { options_.dataset_path = folder_.path(), options_.validation_split = 0; }
  void write(const std::string& name, const std::string& rows) { std::ofstream(folder_.path() + "/" + name) << rows; }
  ClassData load() { return load_class_data(options_, test::kTinyChat, std::nullopt); }

  test::TempFolder folder_{"class_data"};
  ClassifyOptions options_;
};

// As in run_classification.py, which looks for the labels before it cuts the data.
TEST_F(ClassDataOf, ClassesAreThoseOfAllRowsHoweverFewTrain) {
  write("train.csv", "text,label\na,x\nb,y\nc,z\n");
  options_.max_train_samples = 1;
  const auto data = load();
  EXPECT_EQ(data.names, (std::vector<std::string>{"x", "y", "z"}));
  EXPECT_EQ(data.train.size(), 1);
}

TEST_F(ClassDataOf, NumbersOfWhichOneIsMissingAreNoClasses) {
  write("train.csv", "text,label\na,1\nb,\nc,0\n");
  try {
    load();
    FAIL() << "an empty label was taken for a class";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()), "train.csv:3: column 'label' must be a string or a number, found an empty cell");
  }
}

// Not the classes "0" and "1", which every such row would have both of.
TEST_F(ClassDataOf, AListOfNumbersThatIsAVectorIsRefused) {
  const auto refused = [&](const std::string& rows, const std::string& why) {
    write("train.jsonl", rows);
    try {
      load();
      FAIL() << "taken for names: " << rows;
    } catch (const DataError& e) {
      EXPECT_SAYS(std::string(e.what()), why);
    }
  };
  const std::string first = R"({"text": "a", "label": [0, 1]})";
  refused(first + "\n" + R"({"text": "b", "label": [0, 1, 1]})", "train.jsonl:2: the label has 1 twice");
  refused(first + "\n" + R"({"text": "b", "label": [true, false, false]})", "train.jsonl:2: the label has False twice");
  refused(R"({"text": "a", "label": [1.0, 0.0]})", "train.jsonl:1: the label has the number 1.0 in a list");
  refused(R"({"text": "a", "label": [0.25, 3]})", "the number 0.25 in a list");
  write("train.jsonl",
        first + "\n" + R"({"text": "b", "label": ["x", "x", 2]})" + "\n" + R"({"text": "c", "label": []})");
  const auto data = load();
  EXPECT_EQ(data.names, (std::vector<std::string>{"0", "1", "2", "x"}));
  EXPECT_TRUE(at::equal(data.train.labels,
                        at::tensor({1.F, 1.F, 0.F, 0.F, 0.F, 0.F, 1.F, 1.F, 0.F, 0.F, 0.F, 0.F}).view({3, 4})))
      << data.train.labels;
}

TEST_F(ClassDataOf, NumbersAreNamesOfAClassifiersClassesOrTheirPlacesNotBoth) {
  const auto labels = [&](const std::vector<std::string>& names) {
    const families::ClassifierConfig config{.num_labels = 2, .problem = families::ProblemType::kSingleLabel};
    return load_class_data(options_, test::kTinyChat, KnownClasses{config, names}).train.labels;
  };
  write("train.csv", "text,label\na,0\nb,1\n");
  EXPECT_TRUE(at::equal(labels({"bad", "good"}), at::tensor({0, 1}).to(at::kLong)));
  EXPECT_TRUE(at::equal(labels({"1", "0"}), at::tensor({1, 0}).to(at::kLong)));
  try {
    labels({"1", "2"});
    FAIL() << "0 and 1 became one class";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()), "the label '0' is none of the model's classes (1, 2)");
  }
}

/// A BERT's tokenizer; more: members of its tokenizer_config.json.
std::string bert_tokenizer(const test::TempFolder& folder, const std::string& more = "") {
  const auto path = folder.path() + "/bert";
  std::filesystem::create_directories(path);
  std::filesystem::copy_file(test::kTestData + "/tokenizers/classes/bert.vocab", path + "/vocab.txt",
                             std::filesystem::copy_options::overwrite_existing);
  std::ofstream(path + "/tokenizer_config.json") << R"({"tokenizer_class": "BertTokenizer")" << more << "}";
  return path;
}

TEST_F(ClassDataOf, TwoTextsAreOneRowWithTypeIdsPaddedByZeros) {
  write("train.csv", "sentence1,sentence2,label\na,b c,x\na b c d,d,y\n");
  const auto data = load_class_data(options_, bert_tokenizer(folder_), std::nullopt);
  const auto id = [&](const char* token) { return data.tokenizer->token_to_id(token); };
  const auto cls = id("[CLS]"), sep = id("[SEP]");
  EXPECT_EQ(data.train.ids[0], (std::vector<std::int32_t>{cls, id("a"), sep, id("b"), id("c"), sep}));
  EXPECT_EQ(data.train.type_ids[0], (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1}));
  const auto batch = collate_classes(data.train, {0, 1}, 0, 0);
  EXPECT_TRUE(at::equal(batch.token_type_ids,
                        at::tensor({0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}).to(at::kLong).view({2, 8})))
      << batch.token_type_ids;
}

TEST_F(ClassDataOf, ModelsThatGetNoTypeIdsAreGivenNone) {
  write("train.csv", "sentence1,sentence2,label\na,b c,x\nb,d,y\n");
  const auto data = load_class_data(
      options_, bert_tokenizer(folder_, R"(, "model_input_names": ["input_ids", "attention_mask"])"), std::nullopt);
  EXPECT_EQ(data.train.ids[0].size(), 6u);
  EXPECT_FALSE(collate_classes(data.train, {0, 1}, 0, 0).token_type_ids.defined());
}

TEST_F(ClassDataOf, OfTwoTextsTheLongerIsCutFirst) {
  options_.max_length = 7;
  options_.columns.text_column = "q";
  options_.columns.pair_column = "r";
  write("train.csv", "q,r,label\na b c d,e,x\na,b,y\n");
  const auto data = load_class_data(options_, bert_tokenizer(folder_), std::nullopt);
  EXPECT_EQ(data.train.type_ids[0], (std::vector<std::int32_t>{0, 0, 0, 0, 0, 1, 1}));
  EXPECT_SAYS(data.notes.back(), "1 text was cut at --max_length 7");
}

/// The rows of a file as `tessera classify` reads them by these flags; or what is wrong with them.
std::vector<data::TextPair> rows_with(const std::string& file, const std::vector<std::string>& flags) {
  std::vector<std::string> args{"--model", "m", "--dataset_path", file};
  args.insert(args.end(), flags.begin(), flags.end());
  std::ostringstream quiet;
  return data::read_pairs(file, parse_classify(args, quiet)->columns);
}
std::string error_with(const std::string& file, const std::vector<std::string>& flags) {
  try {
    rows_with(file, flags);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// run_classification.py joins them, too.
TEST_F(ClassDataOf, SeveralColumnsAreOneText) {
  write("rows.csv", "a,b,c,label\na b,c,d,x\n");
  const auto file = folder_.path() + "/rows.csv";
  EXPECT_EQ(rows_with(file, {"--text_column_names", "a,c"})[0].source, "a b d");
  EXPECT_EQ(rows_with(file, {"--text_column_names", "c,a,b", "--text_column_delimiter", " | "})[0].source,
            "d | a b | c");
  const auto pair = rows_with(file, {"--text_column", "a,b", "--text_pair_column", "c"})[0];
  EXPECT_EQ(pair.source, "a b c");
  EXPECT_EQ(pair.second, "d");
}

TEST_F(ClassDataOf, ColumnsOfOneTextThatAreNotThereAreNamed) {
  write("rows.csv", "a,b,label\nx,y,z\n");
  write("rows.txt", "one@x\n");
  const auto rows = folder_.path() + "/rows.csv", lines = folder_.path() + "/rows.txt";
  EXPECT_SAYS(error_with(rows, {"--text_column", "a,c"}),
              "no column 'c'; the columns are a, b, label. Choose one with --text_column");
  EXPECT_SAYS(error_with(rows, {"--text_column", "a,"}), "there is no name before or after a comma");
  EXPECT_SAYS(error_with(lines, {"--text_column", "a,b"}), "--text_column a,b asks for more");
}

TEST_F(ClassDataOf, AMissingColumnOfTheSecondTextIsNamed) {
  options_.columns.text_column = "a";
  options_.columns.pair_column = "c";
  write("train.csv", "a,b,label\nx,y,z\n");
  try {
    load();
    FAIL() << "the column was not missed";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()),
                "no column 'c'; the columns are a, b, label. Choose one with --text_pair_column");
  }
}

/// As `tessera classify` reads the flags.
ClassifyOptions of_task(const std::string& task, const std::string& folder) {
  std::ostringstream quiet;
  return *parse_classify({"--model", "m", "--task_name", task, "--dataset_path", folder, "--do_predict"}, quiet);
}

// The order of nyu-mll/glue's classes, which is not that of their names; and upper case, as in roberta-large-mnli.
TEST_F(ClassDataOf, ATaskOfGlueHasItsClassesColumnsAndBothSetsOfMnli) {
  write("train.jsonl", R"({"premise": "a", "hypothesis": "b", "idx": 3, "label": 2})");
  write("validation_matched.jsonl", R"({"premise": "a", "hypothesis": "b", "label": 0})");
  write("validation_mismatched.jsonl", R"({"premise": "a", "hypothesis": "b", "label": "neutral"})");
  write("test_matched.jsonl", R"({"premise": "a", "hypothesis": "b", "label": -1})");
  write("test_mismatched.jsonl", R"({"premise": "a", "hypothesis": "b c", "label": -1})");
  const auto options = of_task("mnli", folder_.path());
  const auto data = load_class_data(options, bert_tokenizer(folder_), std::nullopt);
  EXPECT_EQ(data.names, (std::vector<std::string>{"entailment", "neutral", "contradiction"}));
  EXPECT_EQ(data.train.type_ids[0], (std::vector<std::int32_t>{0, 0, 0, 1, 1}));
  EXPECT_EQ(data.train.labels.item<std::int64_t>(), 2);
  EXPECT_EQ(data.validation.labels.item<std::int64_t>(), 0);
  EXPECT_EQ(data.mismatched.labels.item<std::int64_t>(), 1);
  EXPECT_EQ(data.test.ids[0].size(), 5u);
  EXPECT_EQ(data.mismatched_test.ids[0].size(), 6u);
  write("validation_mismatched.jsonl", R"({"premise": "a", "hypothesis": "b", "label": 1})");
  const families::ClassifierConfig config{.num_labels = 3, .problem = families::ProblemType::kSingleLabel};
  const KnownClasses known{config, {"CONTRADICTION", "NEUTRAL", "ENTAILMENT"}};
  const auto upper = load_class_data(options, bert_tokenizer(folder_), known);
  EXPECT_EQ(upper.names, known.names);
  EXPECT_EQ(upper.train.labels.item<std::int64_t>(), 0);
  EXPECT_EQ(upper.validation.labels.item<std::int64_t>(), 2);
}

TEST_F(ClassDataOf, GluesRowsAreThoseOfTheHubWhereNoneAreNamed) {
  std::ostringstream quiet;
  const auto trained = *parse_classify({"--model", "m", "--task_name", "stsb"}, quiet);
  EXPECT_EQ(trained.dataset_path, "nyu-mll/glue");
  EXPECT_EQ(trained.dataset_config, "stsb");
  EXPECT_EQ(trained.problem_type, "regression");
  const auto evaluated = *parse_classify(
      {"--model", "m", "--task_name", "stsb", "--do_train", "false", "--validation_file", "rows.csv"}, quiet);
  EXPECT_EQ(evaluated.dataset_path, "");
  EXPECT_THROW(
      parse_classify({"--model", "m", "--task_name", "stsb", "--problem_type", "single_label_classification"}, quiet),
      ConfigError);
}

// scikit-learn 1.9.1 and scipy 1.17.1 on the same predictions; the numbers of the regression come from two ranks.
TEST(GlueMeasures, AreThoseOfScikitLearnAndScipy) {
  using families::ProblemType;
  const auto of = [](ClassMeasures measures, std::int64_t labels, const std::vector<std::int64_t>& chosen,
                     const std::vector<std::int64_t>& expected) {
    ClassCounts counts(ProblemType::kSingleLabel, labels, measures);
    counts.add(at::one_hot(at::tensor(chosen), labels).to(at::kFloat), at::tensor(expected));
    return counts.metrics();
  };
  const auto expect = [](const train::Metrics& found, const train::Metrics& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, expected[i].first);
      EXPECT_NEAR(found[i].second, expected[i].second, 1e-12) << found[i].first;
    }
  };
  const std::vector<std::int64_t> chosen{1, 0, 1, 1, 0, 1, 0}, expected{1, 0, 0, 1, 1, 1, 0};
  expect(of(ClassMeasures::kAccuracyAndF1, 2, chosen, expected),
         {{"eval_accuracy", 5. / 7}, {"eval_f1", 0.75}, {"eval_combined_score", (5. / 7 + 0.75) / 2}});
  expect(of(ClassMeasures::kAccuracy, 2, chosen, expected), {{"eval_accuracy", 5. / 7}});
  expect(of(ClassMeasures::kMatthews, 2, chosen, expected), {{"eval_matthews_correlation", 0.4166666666666667}});
  expect(of(ClassMeasures::kMatthews, 3, {0, 1, 2, 2, 1, 0, 0, 2}, {0, 1, 2, 1, 1, 2, 0, 0}),
         {{"eval_matthews_correlation", 0.4523809523809524}});
  ClassCounts numbers(ProblemType::kRegression, 1, ClassMeasures::kCorrelations),
      others(ProblemType::kRegression, 1, ClassMeasures::kCorrelations);
  numbers.add(at::tensor({.5, 2., 2.}), at::tensor({1., 2.5, 2.}));
  others.add(at::tensor({-1., 3.25, 0.}), at::tensor({0., 2.5, -1.}));
  for (std::size_t i = 0; i < numbers.values().size(); ++i) numbers.values()[i] += others.values()[i];
  numbers.pairs().insert(numbers.pairs().end(), others.pairs().begin(), others.pairs().end());
  constexpr double kPearson = 0.8677028154230445, kSpearman = 0.8970588235294118;
  expect(
      numbers.metrics(),
      {{"eval_pearson", kPearson}, {"eval_spearmanr", kSpearman}, {"eval_combined_score", (kPearson + kSpearman) / 2}});
}

// run_classification.py writes the list itself.
TEST(PredictedText, SeveralClassesAreAListAsPythonPrintsIt) {
  const auto text = [](const std::vector<double>& logits) {
    return predicted_text(families::ProblemType::kMultiLabel, at::tensor(logits), {"wet", "don't", "été"});
  };
  EXPECT_EQ(text({1, 2, -1}), "['wet', \"don't\"]");
  EXPECT_EQ(text({-1, -1, 3}), "['été']");
  EXPECT_EQ(text({-1, -1, -1}), "[]");
}

}  // namespace
}  // namespace tessera::tasks
