// Which rows and classes a classifier's data have.
#include "tasks/classify_data.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/program.h"
#include "support/temp_folder.h"
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

}  // namespace
}  // namespace tessera::tasks
