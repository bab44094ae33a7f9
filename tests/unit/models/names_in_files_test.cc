#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "models/names_in_files.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

std::shared_ptr<io::TensorSource> file_with(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& name : names) tensors.emplace_back(name, at::zeros({2}));
  return io::memory_source(std::move(tensors));
}

TEST(NamesInFiles, TheBiasOfAnUntiedMaskedHeadIsThatOfItsMatrix) {
  for (const std::string head : {"lm_head.", "cls.predictions."}) {
    const auto bias = head + "bias", of_matrix = head + "decoder.bias", matrix = head + "decoder.weight";
    const NamesInFiles tied({"bert.embeddings.word_embeddings.weight", bias});
    const NamesInFiles untied({"bert.embeddings.word_embeddings.weight", bias, matrix});
    EXPECT_EQ(tied.in(*file_with({bias, of_matrix, matrix}), bias), bias);
    EXPECT_EQ(tied.in(*file_with({of_matrix, matrix}), bias), of_matrix);
    EXPECT_EQ(untied.in(*file_with({bias, of_matrix, matrix}), bias), of_matrix);
    EXPECT_EQ(untied.in(*file_with({bias, matrix}), bias), bias);
    EXPECT_EQ(untied.to_write(bias), (std::vector<std::string>{bias, of_matrix}));
    EXPECT_EQ(tied.to_write(bias), std::vector{bias});
  }
}

}  // namespace
}  // namespace tessera::models
