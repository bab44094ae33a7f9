// Places in Uni-LoRA's vector: those that PEFT draws, or those of a file.
#include "peft/methods/unilora.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/compare.h"
#include "tessera/base/error.h"
#include "unit/peft/with_adapter.h"

namespace tessera::peft {
namespace {

const std::string kSaved = std::string(TESSERA_TEST_DATA) + "/goldens/J_peft/bert_unilora_cls/adapter_final";

class UniLoraPlaces : public testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;
  UniLoraPlaces() : adapted(load(*read_adapter_config(kSaved), "base_bert")) {
    const auto file = io::open_weights(kSaved + "/adapter_model.safetensors");
    for (const auto& info : file->tensors()) saved.emplace_back(info.name, io::read_tensor(*file, info.name));
  }
  void read(const Tensors& tensors) const { adapted.report.method->readable(io::memory_source(tensors)); }
  static std::string refusal(const std::function<void()>& run) {
    try {
      run();
    } catch (const DataError& e) {
      return e.what();
    }
    return "";
  }

  Loaded adapted;
  Tensors saved;
};

TEST_F(UniLoraPlaces, AreThoseThatPeftDraws) {
  const auto written = adapted.report.method->in_file({});
  int seen = 0;
  for (const auto& [name, value] : saved) {
    if (name.find("unilora_indices") != std::string::npos) {
      EXPECT_TRUE(at::equal(written.at(name), value)) << name;
      ++seen;
    } else if (name.find("unilora_scales") != std::string::npos) {
      test::expect_close(written.at(name), value, 1e-6, name);
      ++seen;
    }
  }
  EXPECT_EQ(seen, 16);
}

TEST_F(UniLoraPlaces, OfAFileAreKept) {
  auto others = saved;
  for (auto& [name, value] : others)
    if (name.find("unilora_indices") != std::string::npos) value = 49 - value;
  read(others);
  const auto written = adapted.report.method->in_file({});
  for (const auto& [name, value] : others)
    if (name.find("unilora_indices") != std::string::npos) {
      EXPECT_TRUE(at::equal(written.at(name), value)) << name;
    }
}

TEST_F(UniLoraPlaces, OfAFileMustBeThereAndInTheVector) {
  auto outside = saved, fewer = saved;
  const auto first = std::find_if(saved.begin(), saved.end(),
                                  [](const auto& t) { return t.first.find("unilora_indices") != std::string::npos; }) -
                     saved.begin();
  outside[static_cast<std::size_t>(first)].second = saved[static_cast<std::size_t>(first)].second + 10;
  EXPECT_NE(refusal([&] { read(outside); }).find("outside of unilora_theta_d, which has 50"), std::string::npos);
  fewer.erase(fewer.begin() + first);
  EXPECT_NE(refusal([&] { read(fewer); }).find("lacks the tensor '" + saved[static_cast<std::size_t>(first)].first),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::peft
