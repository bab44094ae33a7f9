// Masked-LM heads: the loss that is made in parts is that of all logits.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "support/temp_folder.h"
#include "tensor/rng.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/init.h"

namespace tessera::models {
namespace {

struct Result {
  at::Tensor loss, predictions;
  std::map<std::string, at::Tensor> gradients;
};

Result run(Model& model, bool trains, bool with_logits) {
  model.train(trains);
  model.zero_grad();
  tensor::manual_seed(3);
  ModelInput in;
  in.input_ids = at::arange(4, 24, at::kLong).view({2, 10});
  in.labels = in.input_ids.clone();
  in.labels.select(1, 3).fill_(-100);
  in.want_logits = with_logits;
  const auto out = model(in);
  EXPECT_EQ(out.logits.defined(), with_logits);
  out.loss.backward();
  Result result{out.loss.detach(), out.predictions, {}};
  for (const auto& p : model.named_parameters())
    if (p.value().grad().defined()) result.gradients[p.key()] = p.value().grad().clone();
  return result;
}

class MaskedLm : public testing::TestWithParam<nlohmann::json> {};

TEST_P(MaskedLm, LossInPartsIsThatOfAllLogits) {
  const test::TempFolder folder("masked_lm");
  std::ofstream(folder.path() + "/config.json") << GetParam();
  ModelConfig family;
  const auto model = build_model(folder.path(), &family);
  init_weights(*model, 5);
  for (const bool trains : {true, false}) {
    const auto parts = run(*model, trains, false), whole = run(*model, trains, true);
    EXPECT_TRUE(at::allclose(parts.loss, whole.loss, 1e-5, 1e-6)) << parts.loss << " " << whole.loss;
    EXPECT_GT(parts.gradients.size(), 10u);
    ASSERT_EQ(parts.gradients.size(), whole.gradients.size());
    for (const auto& [name, gradient] : whole.gradients) {
      ASSERT_TRUE(parts.gradients.count(name)) << name;
      EXPECT_TRUE(at::allclose(parts.gradients.at(name), gradient, 1e-4, 1e-6)) << name;
    }
    if (!trains) {
      ASSERT_TRUE(parts.predictions.defined());
      EXPECT_TRUE(at::equal(parts.predictions, whole.predictions));
    }
  }
}

nlohmann::json config(const std::string& type, const std::string& architecture, nlohmann::json more = {}) {
  nlohmann::json c = {{"model_type", type},
                      {"architectures", {architecture}},
                      {"vocab_size", 30},
                      {"hidden_size", 16},
                      {"num_attention_heads", 2},
                      {"num_hidden_layers", 1},
                      {"intermediate_size", 24},
                      {"max_position_embeddings", 32},
                      {"hidden_dropout_prob", 0.0},
                      {"type_vocab_size", 2},
                      {"pad_token_id", 0},
                      {"initializer_range", 0.3},
                      {"attention_probs_dropout_prob", 0.0}};
  if (!more.is_null()) c.update(more);
  return c;
}

INSTANTIATE_TEST_SUITE_P(Families, MaskedLm,
                         testing::Values(config("bert", "BertForMaskedLM"),
                                         config("bert", "BertForMaskedLM", {{"tie_word_embeddings", false}}),
                                         config("roberta", "RobertaForMaskedLM"),
                                         config("roberta", "RobertaForMaskedLM", {{"tie_word_embeddings", false}}),
                                         config("electra", "ElectraForMaskedLM", {{"embedding_size", 8}}),
                                         config("deberta", "DebertaForMaskedLM"),
                                         config("deberta-v2", "DebertaV2ForMaskedLM", {{"legacy", false}}),
                                         nlohmann::json{{"model_type", "distilbert"},
                                                        {"architectures", {"DistilBertForMaskedLM"}},
                                                        {"vocab_size", 30},
                                                        {"dim", 16},
                                                        {"n_heads", 2},
                                                        {"n_layers", 1},
                                                        {"hidden_dim", 24},
                                                        {"dropout", 0.0},
                                                        {"attention_dropout", 0.0},
                                                        {"max_position_embeddings", 32},
                                                        {"initializer_range", 0.3}}),
                         [](const auto& info) {
                           auto name = info.param.at("model_type").template get<std::string>() + "_" +
                                       std::to_string(info.index);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// transformers 5 writes both biases of an untied head and computes with the matrix's; so does what is written here.
TEST(MaskedLmFiles, TheBiasOfTheHeadMayStandBesideThatOfItsMatrix) {
  for (const std::string type : {"bert", "roberta"}) {
    const test::TempFolder folder("masked_lm");
    std::ofstream(folder.path() + "/config.json")
        << config(type, type == "bert" ? "BertForMaskedLM" : "RobertaForMaskedLM", {{"tie_word_embeddings", false}});
    ModelConfig family;
    const auto model = build_model(folder.path(), &family);
    init_weights(*model, 5);
    const std::string head = type == "bert" ? "cls.predictions." : "lm_head.";
    std::vector<std::pair<std::string, at::Tensor>> file;
    for (const auto& p : model->named_parameters()) file.emplace_back(p.key(), p.value().detach().clone());
    file.emplace_back(head + "decoder.bias", at::arange(30, at::kFloat));
    const auto source = io::memory_source(file);
    EXPECT_TRUE(unused_weights(*model, *source).empty());
    load_weights(*model, *source);
    EXPECT_TRUE(at::equal(model->named_parameters()[head + "bias"], at::arange(30, at::kFloat)));
  }
}

}  // namespace
}  // namespace tessera::models
