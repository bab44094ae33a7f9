// Adapters over a model's body without a head: the merged body has what PEFT's has, the pooler among it.
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>

#include <set>
#include <sstream>

#include "support/temp_folder.h"
#include "tasks/merge.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {
namespace {

class MergedBodies : public testing::TestWithParam<const char*> {};

std::set<std::string> names_of(const io::TensorSource& source) {
  std::set<std::string> names;
  for (const auto& info : source.tensors()) names.insert(info.name);
  return names;
}

TEST_P(MergedBodies, HaveTheTensorsOfPefts) {
  const test::TempFolder folder("merged_bodies");
  const std::string data = std::string(TESSERA_TEST_DATA) + "/bodies/" + GetParam(), output = folder.path() + "/merged";
  std::ostringstream out, err;
  ASSERT_EQ(merge({"--model", data + "/base", "--adapter", data + "/adapter", "--output_dir", output}, out, err), 0);
  EXPECT_EQ(out.str().find("not used"), std::string::npos) << out.str();
  const auto ours = io::open_safetensors(output + "/model.safetensors");
  const auto pefts = io::open_safetensors(data + "/merged/model.safetensors");
  ASSERT_EQ(names_of(*ours), names_of(*pefts));
  for (const auto& info : pefts->tensors())
    EXPECT_TRUE(at::allclose(io::read_tensor(*ours, info.name), io::read_tensor(*pefts, info.name), 1e-5, 1e-6))
        << info.name;
}

INSTANTIATE_TEST_SUITE_P(Cases, MergedBodies, testing::Values("bert_dense", "bert_saved", "bert_without", "roberta"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace tessera::tasks
