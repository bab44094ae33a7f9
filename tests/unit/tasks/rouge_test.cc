// ROUGE, its stemmer and its sentences, against rouge_score and NLTK.
#include "tasks/rouge.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tasks/porter_stemmer.h"
#include "tasks/sentences.h"

namespace tessera::tasks {
namespace {

const std::string kRouge = std::string(TESSERA_TEST_DATA) + "/rouge/";

TEST(PorterStemmer, EqualsNltks) {
  std::ifstream file(kRouge + "stems.txt");
  int words = 0;
  for (std::string word, stem; file >> word >> stem; ++words) EXPECT_EQ(porter_stem(word), stem) << word;
  EXPECT_GT(words, 2000);
}

TEST(Rouge, EqualsRougeScore) {
  const auto pairs = nlohmann::json::parse(std::ifstream(kRouge + "pairs.json"));
  Rouge mean;
  std::vector<std::string> predictions, references;
  for (const auto& pair : pairs) {
    predictions.push_back(pair["prediction"]);
    references.push_back(pair["reference"]);
    const auto one = rouge({predictions.back()}, {references.back()});
    EXPECT_NEAR(one.rouge1, pair["rouge1"].get<double>(), 1e-12) << pair;
    EXPECT_NEAR(one.rouge2, pair["rouge2"].get<double>(), 1e-12) << pair;
    EXPECT_NEAR(one.rougeL, pair["rougeL"].get<double>(), 1e-12) << pair;
    EXPECT_NEAR(one.rougeLsum, pair["rougeLsum"].get<double>(), 1e-12) << pair;
    mean.rouge1 += one.rouge1 / static_cast<double>(pairs.size());
  }
  EXPECT_NEAR(rouge(predictions, references).rouge1, mean.rouge1, 1e-12);
  EXPECT_EQ(rouge({}, {}).rouge1, 0);
}

TEST(SentenceALine, BreaksBehindWhatEndsASentence) {
  EXPECT_EQ(sentence_a_line("One. Two!  Three?\tFour"), "One.\nTwo!\nThree?\nFour");
  EXPECT_EQ(sentence_a_line("(He said \"no.\") Then 3.5 of it... went"), "(He said \"no.\")\nThen 3.5 of it...\nwent");
  EXPECT_EQ(sentence_a_line("Ein „Satz.” Und\nnoch \"einer"), "Ein „Satz.”\nUnd\nnoch \"einer");
  EXPECT_EQ(sentence_a_line(""), "");
}

}  // namespace
}  // namespace tessera::tasks
