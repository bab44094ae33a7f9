// What every method of the registry says of a configuration, a file of tensors, a module or a base that is not its own.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/file.h"
#include "checkpoint/pretrained.h"
#include "hub/model_folder.h"
#include "peft/adapter_config.h"
#include "peft/combine/combine_lora.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tasks/assemble.h"
#include "tasks/init_model.h"
#include "tensor/shape_text.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "unit/tasks/registry_settings.h"

namespace tessera::tasks::bad_adapters {
namespace {

using nlohmann::json;
using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

const std::string kBases = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/";

json keys_of(const std::string& type, const json& more = json::object()) {
  auto keys = settings_of(type);
  keys["peft_type"] = type;
  keys.update(more);
  return keys;
}

std::string what_fails(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// What reading these keys and putting the adapter into a small Llama says; empty: nothing.
std::string refusal(const json& keys) {
  return what_fails([&] {
    (void)assemble({.model_folder = kBases + "base_llama", .method = peft::read_peft_keys(keys, "the_config.json")},
                   comm::make_solo());
  });
}

/// A part of a message that must be there.
void expect_part(const std::string& said, const std::string& part, const std::string& of) {
  EXPECT_NE(said.find(part), std::string::npos) << of << ": expected '" << part << "' in: " << said;
}

class BadAdapters : public testing::TestWithParam<std::string> {
 protected:
  BadAdapters() : folder_("bad_adapters_" + GetParam()) {}

  /// The method's adapter of the small Llama, as it begins.
  std::string saved() {
    const auto place = folder_.path() + "/adapter";
    const auto a = assemble(
        {.model_folder = kBases + "base_llama", .method = peft::read_peft_keys(keys_of(GetParam()), "the test")},
        comm::make_solo());
    checkpoint::save_adapter(*a.sharded, a.adapted(), {.dtype = at::kFloat}, place);
    return place;
  }
  static Tensors tensors_of(const std::string& adapter) {
    const auto source = io::open_safetensors(adapter + "/adapter_model.safetensors");
    Tensors out;
    for (const auto& info : source->tensors()) out.emplace_back(info.name, io::read_tensor(*source, info.name));
    return out;
  }
  /// What loading the adapter with these tensors says.
  static std::string with_tensors(const std::string& adapter, const Tensors& tensors) {
    io::write_safetensors(adapter + "/adapter_model.safetensors", tensors);
    return loaded(adapter, kBases + "base_llama");
  }
  static std::string loaded(const std::string& adapter, const std::string& base) {
    return what_fails([&] { (void)assemble({.model_folder = base, .adapter_folder = adapter}, comm::make_solo()); });
  }

  test::TempFolder folder_;
};

TEST_P(BadAdapters, AKeyOfANewerVersionIsNamedAndRefusedWhereItMayChangeNumbers) {
  const json values = {true, 1, 0.5, "word", {1, 2}, {{"inner", 1}}};
  for (const auto& value : values) {
    const auto said = refusal(keys_of(GetParam(), {{"option_of_tomorrow", value}}));
    for (const std::string part : {"the_config.json", "option_of_tomorrow", "remove it"})
      expect_part(said, part, value.dump());
  }
  std::vector<std::string> notes;
  for (const auto& off : json({nullptr, false, "", json::array(), json::object()})) {
    notes.clear();
    (void)peft::read_peft_keys(keys_of(GetParam(), {{"option_of_tomorrow", off}}), "the_config.json", &notes);
    ASSERT_EQ(notes.size(), 1U) << off.dump();
    expect_part(notes[0], "option_of_tomorrow", off.dump());
  }
}

/// What PEFT writes and nothing here reads.
bool is_unread(const std::string& type, const std::string& key) {
  static const std::set<std::string> everywhere = {
      "peft_type",         "peft_version", "auto_mapping", "revision",       "megatron_config", "megatron_core",
      "qalora_group_size", "corda_config", "eva_config",   "lora_ga_config", "loftq_config",    "use_effective_conv2d"};
  static const std::set<std::string> of_adalora = {"use_rslora",        "lora_bias",     "use_qalora",
                                                   "alpha_pattern",     "arrow_config",  "kasa_config",
                                                   "monteclora_config", "velora_config", "loftq_config"};
  return everywhere.contains(key) || (type == "ADALORA" && of_adalora.contains(key));
}

TEST_P(BadAdapters, AValueOfAnotherTypeIsRefusedByItsKey) {
  const auto method = peft::read_peft_keys(keys_of(GetParam()), "the test");
  const auto written = json::parse(peft::adapter_config_json(*method));
  EXPECT_GT(written.size(), 8U);
  for (const auto& [key, value] : written.items()) {
    if (is_unread(GetParam(), key)) continue;
    const json wrong = value.is_object() ? json({"a", {1}}) : json({{"a", {1}}});
    expect_part(refusal(keys_of(GetParam(), {{key, wrong}})), key, key + " = " + wrong.dump());
  }
}

TEST_P(BadAdapters, SizesAndProbabilitiesHaveTheirRanges) {
  const auto method = peft::read_peft_keys(keys_of(GetParam()), "the test");
  const auto written = json::parse(peft::adapter_config_json(*method));
  for (const auto& [key, value] : written.items()) {
    if (is_unread(GetParam(), key)) continue;
    const bool counts = key == "r" || key == "init_r" || key == "num_virtual_tokens" || key == "n_frequency" ||
                        key == "num_vectors" || key == "vector_length" || key == "topk";
    const bool drops = key.ends_with("dropout");
    if (!counts && !drops) continue;
    if (GetParam() == "ADALORA" && key == "r") continue;  // does not count, in PEFT neither
    expect_part(refusal(keys_of(GetParam(), {{key, drops ? json(1.5) : json(-3)}})), key, key);
  }
}

TEST_P(BadAdapters, ATensorOfAnotherShapeIsNamedWithBothShapesAndTheFile) {
  const auto adapter = saved();
  const auto tensors = tensors_of(adapter);
  ASSERT_FALSE(tensors.empty());
  std::set<std::string> seen;  // one of each kind
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, value] = tensors[i];
    if (!seen.insert(std::regex_replace(name, std::regex(R"(\.\d+\.)"), ".N.")).second) continue;
    auto changed = tensors;
    auto sizes = value.sizes().vec();
    sizes.back() += 1;
    changed[i].second = torch::zeros(sizes);
    const auto said = with_tensors(adapter, changed);
    for (const auto& part :
         {adapter + "/adapter_model.safetensors", name, tensor::shape_text(sizes), tensor::shape_text(value.sizes())})
      expect_part(said, part, name);
  }
}

TEST_P(BadAdapters, ATensorTooFewOrTooManyIsNamed) {
  const auto adapter = saved();
  const auto tensors = tensors_of(adapter);
  auto fewer = tensors;
  const auto one = std::find_if(fewer.begin(), fewer.end(), [](const auto& t) {
    return t.first.find("randlora_A") == std::string::npos &&
           t.first.find("randlora_B") == std::string::npos;  // copies
  });
  ASSERT_NE(one, fewer.end());
  const auto gone = one->first;
  fewer.erase(one);
  auto more = tensors;
  more.emplace_back("base_model.model.model.layers.7.self_attn.q_proj.lora_Z.weight", torch::zeros({2, 2}));
  const auto missing = with_tensors(adapter, fewer);
  expect_part(missing, "lacks the tensor '" + gone, gone);
  expect_part(missing, "adapter_model.safetensors", gone);
  const auto surplus = with_tensors(adapter, more);
  expect_part(surplus, "lora_Z", "one more");
  expect_part(surplus, "no part of the adapter", "one more");
  EXPECT_EQ(with_tensors(adapter, tensors), "");
}

TEST_P(BadAdapters, AnotherBaseIsRefused) {
  const auto adapter = saved();
  EXPECT_EQ(loaded(adapter, kBases + "base_llama"), "");
  std::ostringstream quiet;
  const auto wide = folder_.path() + "/wide";
  ASSERT_EQ(init_model({test::kTinyChat, wide}, quiet, quiet), 0);
  for (const auto& base : {kBases + "base_gpt2", wide}) {
    const auto said = loaded(adapter, base);
    const auto& type = GetParam();
    if ((type == "FOURIERFT" || type == "WAVEFT" || type == "PSOFT") && base == wide) {
      EXPECT_EQ(said, "") << "its file holds nothing of a layer's size, so nobody can tell";
      continue;
    }
    const bool names_it =
        std::regex_search(said, std::regex("target_modules|base model|token_dim|num_layers|token \\d+"));
    EXPECT_TRUE(names_it) << base << ": " << said;
  }
}

TEST_P(BadAdapters, AModuleThatItCannotTakeIsNamed) {
  const std::string type = GetParam();
  const auto said_of = [&](const char* module) { return refusal(keys_of(type, {{"target_modules", {module}}})); };
  expect_part(said_of("no_such_layer"),
              type.ends_with("_TUNING") && type != "LN_TUNING" ? "target_modules" : "no_such_layer",
              "a module that is not there");
  const bool takes_embeddings = type == "LORA" || type == "TRAINABLE_TOKENS";
  const auto other = said_of(takes_embeddings ? "input_layernorm" : type == "LN_TUNING" ? "q_proj" : "embed_tokens");
  EXPECT_NE(other.find("target_modules"), std::string::npos) << other;
}

TEST_P(BadAdapters, OnlyLoraAdaptersCombine) {
  if (GetParam() == "LORA") return;
  const auto adapter = saved();
  const auto said = what_fails([&] {
    (void)peft::combine_lora({.adapters = {{"first", adapter}, {"second", adapter}}, .combination_type = "linear"},
                             folder_.path());
  });
  expect_part(said, "adapter 'first' (" + adapter + ")", "the adapter");
  expect_part(said, "peft_type is " + GetParam(), "its type");
}

INSTANTIATE_TEST_SUITE_P(Registry, BadAdapters, testing::ValuesIn(peft::method_types()),
                         [](const auto& info) { return info.param; });

std::string refusal_of(const std::string& base, const json& keys, const std::string& config) {
  return what_fails(
      [&] { (void)assemble({.model_folder = base, .method = peft::read_peft_keys(keys, config)}, comm::make_solo()); });
}

TEST(BadPeftValues, CoftTurnsBlocksByMoreThanNothing) {
  for (const double eps : {0.0, -1e-3})
    expect_part(refusal(keys_of("OFT", {{"coft", true}, {"eps", eps}})), "eps", std::to_string(eps));
  EXPECT_EQ(refusal(keys_of("OFT", {{"coft", false}, {"eps", 0}})), "");  // PEFT does not look at it, either
  EXPECT_EQ(refusal(keys_of("OFT", {{"coft", true}, {"eps", 6e-5}})), "");
}

// Where no module is tied PEFT warns: then the key means nothing.
TEST(BadPeftValues, EnsureWeightTyingIsRefusedWhereATiedModuleIsATarget) {
  const auto tied = std::string(test::kTinyChat), untied = kBases + "base_llama";
  const test::TempFolder folder("tied");
  std::ostringstream quiet;
  ASSERT_EQ(init_model({tied, folder.path() + "/model"}, quiet, quiet), 0);
  const auto said = [&](const std::string& type, const std::string& base, json more) {
    more["ensure_weight_tying"] = true;
    return refusal_of(base, keys_of(type, more), "the_config.json");
  };
  const auto model = folder.path() + "/model";
  const json table = {{"target_modules", {"q_proj", "embed_tokens"}}}, regex = {{"target_modules", ".*embed_tokens"}};
  for (const json& keys :
       {table, json({{"target_modules", {"q_proj", "lm_head"}}, {"modules_to_save", {"embed_tokens"}}}),
        json({{"target_modules", {"model.embed_tokens"}}}), regex})
    expect_part(said("LORA", model, keys), "ensure_weight_tying", keys.dump());
  expect_part(said("LORA", kBases + "base_t5", {{"modules_to_save", {"lm_head"}}}), "ensure_weight_tying", "T5");
  EXPECT_EQ(said("LORA", model, {{"target_modules", {"q_proj"}}, {"modules_to_save", {"lm_head"}}}), "");
  EXPECT_EQ(said("ADALORA", model, {{"modules_to_save", {"embed_tokens"}}}), "");
  EXPECT_EQ(said("LORA", model, {{"target_modules", {"q_proj"}}}), "");
  EXPECT_EQ(said("LORA", untied, table), "");
  EXPECT_EQ(said("ADALORA", model, json::object()), "");
}

// What EVA begins with is in the file once it is saved; a new adapter would need data.
TEST(BadPeftValues, EvaIsRefusedForNewAdaptersAlone) {
  expect_part(refusal(keys_of("LORA", {{"init_lora_weights", "eva"}})), "eva begins with what layers see", "a new one");
  const test::TempFolder folder("eva");
  const std::shared_ptr<peft::PeftMethod> method = peft::read_peft_keys(
      keys_of("LORA", {{"rank_pattern", {{"q_proj", 2}}}, {"init_lora_weights", false}}), "the test");
  const auto outputs = [](const AssembleOptions& options, const std::string& saved_in) {
    const auto a = assemble(options, comm::make_solo());
    if (!saved_in.empty()) checkpoint::save_adapter(*a.sharded, a.adapted(), {.dtype = at::kFloat}, saved_in);
    models::ModelInput in;
    in.input_ids = (at::arange(14) * 5 % 29 + 3).view({2, 7});
    const torch::NoGradGuard no_grad;
    return (*a.model)(in).logits;
  };
  const auto adapter = folder.path() + "/adapter", base = kBases + "base_llama";
  const auto before = outputs({.model_folder = base, .method = method}, adapter);
  auto config = json::parse(read_file(adapter + "/adapter_config.json"));
  config.update({{"init_lora_weights", "eva"}, {"eva_config", {{"rho", 2.0}, {"tau", 0.99}, {"whiten", false}}}});
  write_file_atomically(adapter + "/adapter_config.json", config.dump());
  EXPECT_TRUE(torch::equal(outputs({.model_folder = base, .adapter_folder = adapter}, ""), before));
  const auto again = peft::read_adapter_config(adapter);
  EXPECT_EQ(json::parse(peft::adapter_config_json(*again)).at("init_lora_weights"), true);
}

TEST(BadPeftValues, ATargetThatMatchesNothingIsNotedBesideOthers) {
  const auto notes = [](const json& targets) {
    const auto keys = keys_of("LORA", {{"target_modules", targets}});
    return assemble({.model_folder = kBases + "base_llama", .method = peft::read_peft_keys(keys, "the test")},
                    comm::make_solo())
        .notes;
  };
  EXPECT_EQ(notes({"q_proj", "v_porj"}),
            (std::vector<std::string>{"target_modules: 'v_porj' matches no module that takes an adapter (did you mean "
                                      "'v_proj'?); it is left out"}));
  EXPECT_TRUE(notes({"q_proj", "layers.0.self_attn.v_proj"}).empty());
  EXPECT_TRUE(notes("all-linear").empty());
}

TEST(BadAdapterFolders, AreNotTakenForModels) {
  const test::TempFolder folder("no_adapter");
  EXPECT_SAYS(what_fails([&] { (void)peft::read_adapter_config(folder.path()); }), "expected the folder of an adapter");
  const auto file = folder.path() + "/adapter.gguf";
  write_file_atomically(file, "GGUF");
  EXPECT_SAYS(what_fails([&] { (void)hub::find_adapter(file); }), "written for llama.cpp and not read here");
}

TEST(BadPeftValues, ABiasCannotBeMergedIntoALayerWithoutOne) {
  const auto merges = [](const char* base, const json& keys) {
    return what_fails([&] {
      const auto a = assemble({.model_folder = kBases + base, .method = peft::read_peft_keys(keys, "the test")},
                              comm::make_solo());
      a.adapters->method->check_can_merge(*a.model);
    });
  };
  const json biased = keys_of("LORA", {{"lora_bias", true}});
  EXPECT_EQ(merges("base_gpt2", biased), "");
  const auto said = merges("base_llama", biased);
  for (const char* part : {"lora_bias", "q_proj", "has no bias"}) expect_part(said, part, "a base without biases");
  EXPECT_EQ(merges("base_llama", keys_of("LORA")), "");
}

}  // namespace
}  // namespace tessera::tasks::bad_adapters
