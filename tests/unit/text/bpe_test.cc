#include "text/bpe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tessera/base/error.h"
#include "text/bpe_merge.h"

namespace tessera::text {
namespace {

BpeOptions letters(std::initializer_list<std::pair<std::string_view, std::string_view>> merges) {
  BpeOptions out;
  for (const char* token : {"a", "b", "c"})
    out.vocabulary.add(token, static_cast<std::int32_t>(out.vocabulary.count()));
  out.merges = merges;
  for (const auto& [left, right] : merges)
    out.vocabulary.add(std::string(left).append(right), static_cast<std::int32_t>(out.vocabulary.count()));
  return out;
}

std::string tokens_of(const Model& model, std::string_view text) {
  std::vector<ModelToken> tokens;
  model.tokenize(text, tokens);
  std::string out;
  for (const auto& t : tokens) out += model.token(t.id) + " ";
  return out;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const auto model = make_bpe(letters({{"b", "c"}, {"a", "b"}, {"a", "a"}}), "m");
  EXPECT_EQ(tokens_of(*model, "abc"), "a bc ");
  EXPECT_EQ(tokens_of(*model, "aaa"), "aa a ");
  EXPECT_EQ(tokens_of(*model, "aaab"), "aa ab ");
}

TEST(Bpe, MergesThatTheVocabularyLacksAreErrors) {
  auto options = letters({{"a", "b"}});
  options.merges.emplace_back("a", "x");
  try {
    make_bpe(std::move(options), "file: model");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_STREQ(e.what(), "file: model.merges[1]: the vocabulary has no token \"x\"");
  }
}

// The plain definition, quadratic: what merge_symbols() must equal for short and for long pieces.
std::vector<std::int32_t> merge_plainly(const MergeTable& merges, std::vector<std::int32_t> ids) {
  for (;;) {
    std::size_t best = ids.size();
    Merge merge;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto now = merges.find(ids[i], ids[i + 1]);
      if (now.rank >= 0 && (best == ids.size() || now.rank < merge.rank)) {
        best = i;
        merge = now;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = merge.id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, MergesEqualThePlainDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    MergeTable merges;
    for (std::int32_t rank = 0; rank < 40; ++rank)
      merges.add(static_cast<std::int32_t>(random() % (4 + rank)), static_cast<std::int32_t>(random() % (4 + rank)),
                 {rank, 4 + rank});
    std::vector<Symbol> symbols(random() % 120);
    std::vector<std::int32_t> ids;
    for (auto& s : symbols) {
      s = {static_cast<std::int32_t>(random() % 4), 1};
      ids.push_back(s.id);
    }
    const auto length = symbols.size();
    merge_symbols(merges, symbols);
    std::vector<std::int32_t> got;
    std::size_t total = 0;
    for (const auto& s : symbols) {
      got.push_back(s.id);
      total += s.length;
    }
    EXPECT_EQ(got, merge_plainly(merges, ids));
    EXPECT_EQ(total, length);
  }
}

TEST(Bpe, ALongPieceTakesNoQuadraticTime) {
  const auto model = make_bpe(letters({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}), "m");
  const std::string text(1 << 20, 'a');
  std::vector<ModelToken> tokens;
  const auto start = std::chrono::steady_clock::now();
  model->tokenize(text, tokens);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));  // quadratic: many minutes
  EXPECT_EQ(tokens.size(), text.size() / 8);
  EXPECT_EQ(tokens.back().end, text.size());
}

TEST(Bpe, WordsFromTheCacheEqualTheFirstOnes) {
  const auto one = make_bpe(letters({{"a", "b"}}), "m"), other = make_bpe(letters({{"b", "c"}}), "m");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(tokens_of(*one, "abc"), "ab c ");
    EXPECT_EQ(tokens_of(*other, "abc"), "a bc ");
  }
}

}  // namespace
}  // namespace tessera::text
