// Weight files that are cut while `tessera generate` and `tessera merge` read them where they lie.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <mutex>

#include "checkpoint/pretrained.h"
#include "models/generation.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "unit/tasks/adapted_llama.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

class CutFiles : public testing::TestWithParam<int> {
 protected:
  CutFiles() : temp_(test::TempFolder::on_disk("cut_files")), folder_(temp_.path() + "/model") {
    fs::copy(kLlama, folder_);
  }
  std::string file() const { return folder_ + "/model.safetensors"; }
  void cut() const { fs::resize_file(file(), 0); }

  /// Expects every rank to end with an error that names the file; body gets the base model, frozen, with an adapter.
  void expect_named(const std::function<void(const Assembled&, bool first)>& body) const {
    std::mutex mutex;
    int named = 0;
    comm::run_threads(GetParam(), [&](const std::shared_ptr<comm::Communicator>& group) {
      auto options = adapted_llama({{"peft_type", "LORA"}, {"r", 2}, {"target_modules", "all-linear"}});
      options.model_folder = folder_;
      const auto model = assemble(options, group);
      ASSERT_GT(model.sharded->memory().mapped_bytes, 0);
      try {
        body(model, group->rank() == 0);
        ADD_FAILURE() << "no error on rank " << group->rank();
      } catch (const DataError& e) {
        EXPECT_SAYS(std::string(e.what()), file() + ": cannot be read at byte ");
        const std::lock_guard lock(mutex);
        ++named;
      }
    });
    EXPECT_EQ(named, GetParam());
  }

  test::TempFolder temp_;
  std::string folder_;
};

TEST_P(CutFiles, AGenerationEndsWithTheFilesName) {
  expect_named([&](const Assembled& a, bool first) {
    models::GenerationConfig settings;
    settings.max_new_tokens = 20;
    settings.eos_token_ids = {};
    int tokens = 0;
    models::generate(*a.model, at::full({1, 3}, 5, at::kLong), {}, settings, false, [&](const at::Tensor&) {
      if (++tokens != 2) return;
      a.sharded->group().barrier();
      if (first) cut();
      a.sharded->group().barrier();
    });
  });
}

TEST_P(CutFiles, AMergeEndsWithTheFilesNameAndWritesNoModel) {
  const std::string merged = temp_.path() + "/merged";
  expect_named([&](const Assembled& a, bool first) {
    if (first) cut();
    a.sharded->group().barrier();
    checkpoint::save_merged(*a.sharded, a.adapted(), {.files = {.model = folder_, .tokenizer = {}}}, merged,
                            checkpoint::Head::kAsInBase);
  });
  EXPECT_TRUE(fs::is_empty(merged)) << "half a model";
}

INSTANTIATE_TEST_SUITE_P(Ranks, CutFiles, testing::Values(1, 2));

}  // namespace
}  // namespace tessera::tasks
