// T5 against transformers on tiny random models: logits, loss, hidden states and every gradient.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

#include "models/model.h"
#include "support/compare.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
const std::string kT5Folder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/";

struct T5Case {
  std::string model, file;
};

std::vector<T5Case> t5_cases() {
  std::vector<T5Case> out;
  for (const char* model : {"t5_v1_0", "t5_v1_1", "t5_long", "mt5"}) {
    for (const auto& entry : fs::directory_iterator(kT5Folder + model)) {
      const auto name = entry.path().filename().string();
      if (name.starts_with("io") && name.ends_with(".safetensors")) out.push_back({model, name});
    }
  }
  return out;
}

class T5Golden : public testing::TestWithParam<T5Case> {};

at::Tensor optional_tensor(const io::TensorSource& io, const std::string& name) {
  return io.find(name) ? io::read_tensor(io, name) : at::Tensor();
}

TEST_P(T5Golden, MatchesTransformers) {
  ModelConfig config;
  auto model = build_model(kT5Folder + GetParam().model, &config);
  load_weights(*model, *io::open_weights(kT5Folder + GetParam().model));
  model->eval();
  const auto io = io::open_safetensors(kT5Folder + GetParam().model + "/" + GetParam().file);
  ModelInput in;
  in.input_ids = io::read_tensor(*io, "input_ids");
  in.attention_mask = optional_tensor(*io, "attention_mask");
  in.labels = io::read_tensor(*io, "labels");
  in.want_hidden = true;
  auto out = (*model)(in);
  test::expect_close(out.logits, io::read_tensor(*io, "logits"), 1e-5, "logits");
  test::expect_close(out.loss, io::read_tensor(*io, "loss"), 1e-5, "loss");
  for (const auto& info : io->tensors()) {
    const auto hidden = [&](const std::string& prefix, const std::vector<at::Tensor>& states, bool masked) {
      if (!info.name.starts_with(prefix)) return;
      auto ours = states.at(std::stoul(info.name.substr(prefix.size())));
      auto theirs = io::read_tensor(*io, info.name);
      if (masked && in.attention_mask.defined()) theirs = theirs * in.attention_mask.unsqueeze(-1);
      test::expect_close(ours, theirs, 1e-5, info.name);
    };
    hidden("enc_hidden.", out.encoder_hidden, true);
    hidden("dec_hidden.", out.decoder_hidden, false);
  }
  out.loss.backward();
  for (const auto& item : model->named_parameters()) {
    const auto name = "grad." + item.key();
    if (!io->find(name)) continue;
    ASSERT_TRUE(item.value().grad().defined()) << name;
    test::expect_close(item.value().grad(), io::read_tensor(*io, name), 1e-4, name);
  }
}

TEST_P(T5Golden, FusedLossHasTheSameValueAndGradients) {
  auto model = build_model(kT5Folder + GetParam().model, nullptr);
  load_weights(*model, *io::open_weights(kT5Folder + GetParam().model));
  model->train();  // dropout is 0 in these models
  const auto io = io::open_safetensors(kT5Folder + GetParam().model + "/" + GetParam().file);
  ModelInput in;
  in.input_ids = io::read_tensor(*io, "input_ids");
  in.attention_mask = optional_tensor(*io, "attention_mask");
  in.labels = io::read_tensor(*io, "labels");
  in.want_logits = false;
  auto out = (*model)(in);
  EXPECT_FALSE(out.logits.defined());
  test::expect_close(out.loss, io::read_tensor(*io, "loss"), 1e-5, "loss");
  out.loss.backward();
  for (const auto& item : model->named_parameters()) {
    const auto name = "grad." + item.key();
    if (io->find(name)) test::expect_close(item.value().grad(), io::read_tensor(*io, name), 1e-4, name);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, T5Golden, testing::ValuesIn(t5_cases()), [](const auto& info) {
  return info.param.model + "_" + fs::path(info.param.file).stem().string();
});

TEST(T5TokenLoss, IsTheSameWithAndWithoutLogitsAndAsInTransformers) {
  const auto folder = kT5Folder + "t5_v1_0";
  auto model = build_model(folder, nullptr);
  load_weights(*model, *io::open_weights(folder));
  const auto io = io::open_safetensors(folder + "/io.safetensors");
  const auto labels = io::read_tensor(*io, "labels");
  const auto run = [&](bool want_logits, bool train) {
    ModelInput in;
    in.input_ids = io::read_tensor(*io, "input_ids");
    in.attention_mask = optional_tensor(*io, "attention_mask");
    in.labels = labels;
    in.want_logits = want_logits;
    model->train(train);
    return (*model)(in);
  };
  const auto log_p = torch::log_softmax(run(true, false).logits, -1), counts = labels.ne(-100);
  const auto of_label = -log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  model->set_token_loss({.label_smoothing = 0.1});  // LabelSmoother: 0.9 nll + 0.1 mean(-log p)
  const auto smoothed = (0.9 * of_label - 0.1 * log_p.mean(-1)).masked_select(counts).mean();
  test::expect_close(run(true, false).loss, smoothed, 1e-5, "smoothed, logits stored");
  test::expect_close(run(false, false).loss, smoothed, 1e-5, "smoothed, fused");
  model->set_token_loss({.kind = nn::TokenLoss::Kind::kDft});
  const auto dft = (of_label * (-of_label).exp()).masked_select(counts).mean();
  test::expect_close(run(true, false).loss, dft, 1e-5, "dft, logits stored");
  test::expect_close(run(false, false).loss, dft, 1e-5, "dft, fused");
}

}  // namespace
}  // namespace tessera::models
