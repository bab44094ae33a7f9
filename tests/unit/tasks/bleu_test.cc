// BLEU, against sacrebleu.
#include "tasks/bleu.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace tessera::tasks {
namespace {

TEST(Bleu, EqualsSacrebleusCorpusBleu) {
  const auto corpora = nlohmann::json::parse(std::ifstream(std::string(TESSERA_TEST_DATA) + "/bleu/corpora.json"));
  EXPECT_GT(corpora.size(), 15u);
  for (const auto& corpus : corpora)
    EXPECT_NEAR(bleu(corpus["predictions"], corpus["references"]), corpus["bleu"].get<double>(), 1e-9)
        << corpus["name"];
  EXPECT_EQ(bleu({}, {}), 0);
}

}  // namespace
}  // namespace tessera::tasks
