#include "train/results.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "support/temp_folder.h"

namespace tessera::train {
namespace {

using nlohmann::json;

/// A run of which step 4 was the best, evaluated once more at its end.
TrainerState ended() {
  TrainerState s;
  s.total_flos = 7516192768.0;
  s.log_history = {{{"loss", 2.5}, {"epoch", 0.5}, {"step", 4}},
                   {{"eval_loss", 1.5}, {"eval_runtime", 3.0678}, {"epoch", 0.5}, {"step", 4}},
                   {{"eval_loss", 2.0}, {"eval_runtime", 3.0678}, {"epoch", 1.0}, {"step", 8}},
                   {{"train_runtime", 93784.5678},
                    {"train_samples_per_second", 0.00001234},
                    {"train_steps_per_second", 3.25},
                    {"total_flos", 7516192768.0},
                    {"train_loss", 1.23456789},
                    {"train_tokens_per_second", 5.0},
                    {"epoch", 1.0},
                    {"step", 8}}};
  return s;
}

// Texts are those of transformers 4.57.3's save_metrics() and log_metrics() for the same numbers.
TEST(Results, AreTransformersFiles) {
  const test::TempFolder folder("results");
  save_metrics(folder.path(), "train", train_results(ended(), 1234));
  const std::string expected = R"({
    "epoch": 1.0,
    "total_flos": 7516192768.0,
    "train_loss": 1.23456789,
    "train_runtime": 93784.5678,
    "train_samples": 1234,
    "train_samples_per_second": 1.234e-05,
    "train_steps_per_second": 3.25
})";
  EXPECT_EQ(read_file(folder.path() + "/train_results.json"), expected);
  EXPECT_EQ(read_file(folder.path() + "/all_results.json"), expected);
}

TEST(Results, ArePrintedAsTransformersPrintsThem) {
  EXPECT_EQ(metrics_block("train", train_results(ended(), 1234)),
            "***** train metrics *****\n"
            "  epoch                    =               1.0\n"
            "  total_flos               =               7GF\n"
            "  train_loss               =            1.2346\n"
            "  train_runtime            = 1 day, 2:03:04.56\n"
            "  train_samples            =              1234\n"
            "  train_samples_per_second =               0.0\n"
            "  train_steps_per_second   =              3.25\n");
  EXPECT_EQ(metrics_block("eval", eval_results(ended(), 7)),
            "***** eval metrics *****\n"
            "  epoch        =        1.0\n"
            "  eval_loss    =        2.0\n"
            "  eval_runtime = 0:00:03.06\n"
            "  eval_samples =          7\n");
}

TEST(Results, OfAllPartsAreUpdatedNotReplaced) {
  const test::TempFolder folder("all_results");
  const std::string all = folder.path() + "/all_results.json";
  const auto has = [&] { return json::parse(read_file(all)); };
  write_file_atomically(all, R"({"epoch": 9.0, "predict_rouge": 31.5})");
  save_metrics(folder.path(), "train", {{"epoch", 1.0}, {"train_loss", 2.0}});
  save_metrics(folder.path(), "eval", {{"epoch", 2.0}, {"eval_loss", 3.0}});
  EXPECT_EQ(has(), (json{{"epoch", 2.0}, {"eval_loss", 3.0}, {"predict_rouge", 31.5}, {"train_loss", 2.0}}));
  EXPECT_EQ(json::parse(read_file(folder.path() + "/eval_results.json")), (json{{"epoch", 2.0}, {"eval_loss", 3.0}}));
  for (const char* no_results : {"{\"epoch\": 9", "[1]", ""}) {
    write_file_atomically(all, no_results);
    save_metrics(folder.path(), "train", {{"train_loss", 2.0}});
    EXPECT_EQ(has(), (json{{"train_loss", 2.0}})) << no_results;
  }
}

TEST(Results, AreThoseOfTheStepWhoseWeightsStay) {
  EXPECT_EQ(eval_results(ended(), 7, 4).at("eval_loss"), 1.5);
  EXPECT_EQ(eval_results(ended(), 7, 4).at("epoch"), 0.5);
  EXPECT_TRUE(eval_results(ended(), 7, 6).is_null());
  EXPECT_TRUE(eval_results(TrainerState{}, 7).is_null());
  TrainerState uncounted = ended();
  uncounted.total_flos = 0;
  EXPECT_FALSE(train_results(uncounted, 1).contains("total_flos"));
}

}  // namespace
}  // namespace tessera::train
