#include "verify/unused_bias.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace tessera::verify {
namespace {

TEST(UnusedBias, IsTheUntiedHeadsOwnWhereItsMatrixHasAnother) {
  const auto file = [](const std::vector<std::string>& names) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& name : names) tensors.emplace_back(name, at::zeros({2}));
    return io::memory_source(std::move(tensors));
  };
  for (const std::string head : {"lm_head.", "cls.predictions."}) {
    const auto bias = head + "bias", of_matrix = head + "decoder.bias", matrix = head + "decoder.weight";
    const models::NamesInFiles tied({"bert.embeddings.word_embeddings.weight", bias});
    const models::NamesInFiles untied({"bert.embeddings.word_embeddings.weight", bias, matrix});
    const auto both = file({"final." + bias, "final." + of_matrix}), own = file({"final." + bias});
    EXPECT_TRUE(is_unused_bias(untied, *both, bias, "final."));
    EXPECT_FALSE(is_unused_bias(untied, *both, of_matrix, "final."));
    EXPECT_FALSE(is_unused_bias(untied, *both, matrix, "final."));
    EXPECT_FALSE(is_unused_bias(untied, *own, bias, "final.")) << "transformers 4: it is one with the matrix's";
    EXPECT_FALSE(is_unused_bias(tied, *both, bias, "final.")) << "both are one";
    EXPECT_FALSE(is_unused_bias(untied, *both, bias)) << "names of another kind";
  }
}

}  // namespace
}  // namespace tessera::verify
