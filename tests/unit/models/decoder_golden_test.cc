// Decoder families against transformers on tiny random models: logits, loss, hidden states and every gradient, with
// padding on either side, packed documents, and without a mask; and the loss that stores no logits.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>

#include "models/model.h"
#include "support/compare.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/";

struct Case {
  std::string model, file;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << "/" << c.file;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* model : {"llama_gqa_rope3",   "gemma2",     "gemma3",  "mixtral",     "gpt2",
                            "opt_postnorm_proj", "falcon_new", "granite", "olmo2",       "starcoder2",
                            "qwen3_moe",         "qwen2_moe",  "phi",     "phi_qk_norm", "stablelm",
                            "stablelm_qk_norm",  "olmo",       "olmoe",   "glm4",        "gpt_neo",
                            "gpt_bigcode"}) {
    for (const auto& entry : fs::directory_iterator(kFolder + model)) {
      const auto name = entry.path().filename().string();
      if (name.starts_with("io") && name.ends_with(".safetensors")) out.push_back({model, name});
    }
  }
  return out;
}

class DecoderGolden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = kFolder + GetParam().model;
    model_ = build_model(folder_, nullptr);
    load_weights(*model_, *io::open_weights(folder_));
    io_ = io::open_safetensors(folder_ + "/" + GetParam().file);
    in_.input_ids = optional("input_ids");
    in_.attention_mask = optional("attention_mask");
    in_.position_ids = optional("position_ids");
    in_.labels = optional("labels");
  }

  at::Tensor optional(const std::string& name) const {
    return io_->find(name) ? io::read_tensor(*io_, name) : at::Tensor();
  }

  at::Tensor visible(const at::Tensor& t) const {
    return in_.attention_mask.defined() ? t * in_.attention_mask.unsqueeze(-1).to(t.scalar_type()) : t;
  }

  void compare_gradients() const {
    for (const auto& item : model_->named_parameters()) {
      const auto name = "grad." + item.key();
      if (!io_->find(name)) continue;
      const auto expected = io::read_tensor(*io_, name);
      const auto ours = item.value().grad().defined() ? item.value().grad() : torch::zeros_like(expected);
      if (expected.abs().max().item<double>() < 1e-7) {
        EXPECT_LT(ours.abs().max().item<double>(), 1e-5) << name;
      } else {
        test::expect_close(ours, expected, 1e-4, name);
      }
    }
  }

  std::string folder_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<io::TensorSource> io_;
  ModelInput in_;
};

TEST_P(DecoderGolden, MatchesTransformers) {
  model_->eval();
  in_.want_hidden = true;
  const auto out = (*model_)(in_);
  test::expect_close(visible(out.logits), visible(io::read_tensor(*io_, "logits")), 1e-5, "logits");
  test::expect_close(out.loss, io::read_tensor(*io_, "loss"), 1e-5, "loss");
  for (std::size_t i = 0; i < out.hidden.size(); ++i) {
    const auto name = "hidden." + std::to_string(i);
    if (io_->find(name)) test::expect_close(visible(out.hidden[i]), visible(optional(name)), 1e-5, name);
  }
  out.loss.backward();
  compare_gradients();
}

TEST_P(DecoderGolden, FusedLossHasTheSameValueAndGradients) {
  model_->train();  // dropout is 0 in these models
  in_.want_logits = false;
  const auto out = (*model_)(in_);
  EXPECT_FALSE(out.logits.defined());
  test::expect_close(out.loss, io::read_tensor(*io_, "loss"), 1e-5, "loss");
  out.loss.backward();
  compare_gradients();
}

INSTANTIATE_TEST_SUITE_P(Goldens, DecoderGolden, testing::ValuesIn(cases()), [](const auto& info) {
  auto name = info.param.model + "_" + fs::path(info.param.file).stem().string();
  return name;
});

TEST(DecoderModel, AnswersDoNotDependOnPaddingOrPacking) {
  auto model = build_model(kFolder + "llama_gqa_rope3", nullptr);
  load_weights(*model, *io::open_weights(kFolder + "llama_gqa_rope3"));
  model->eval();
  torch::NoGradGuard no_grad;
  const auto a = torch::tensor({{5, 9, 11, 4}}, torch::kLong), b = torch::tensor({{7, 8}}, torch::kLong);
  ModelInput in;
  in.input_ids = torch::cat({a, b}, 1);
  in.position_ids = torch::tensor({{0, 1, 2, 3, 0, 1}}, torch::kLong);
  const auto packed = (*model)(in).logits[0];
  in = {};
  in.input_ids = torch::cat({a, torch::constant_pad_nd(b, {0, 2})}, 0);
  in.attention_mask = torch::tensor({{1, 1, 1, 1}, {1, 1, 0, 0}}, torch::kLong);
  const auto padded = (*model)(in).logits;
  test::expect_close(packed.narrow(0, 0, 4), padded[0], 1e-6, "first document");
  test::expect_close(packed.narrow(0, 4, 2), padded[1].narrow(0, 0, 2), 1e-6, "second document");
}

}  // namespace
}  // namespace tessera::models
