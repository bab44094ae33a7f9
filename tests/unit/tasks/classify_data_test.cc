// Which rows and classes a classifier's data have.
#include "tasks/classify_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <fstream>

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
