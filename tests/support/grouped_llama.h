#pragma once
// Folders of a small Llama in GPTQ's and AWQ's form: random codes, zero points and scales of any group size.
#include <ATen/ATen.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tessera/io/tensor_source.h"

namespace tessera::test {

struct GroupedForm {
  std::string method = "gptq";  // or "awq"
  std::int64_t group = 128;     // inputs: 32, 64 or 128
  bool act_order = false;       // inputs of a group do not follow each other (GPTQ)
};

namespace grouped_llama {

constexpr std::int64_t kHidden = 128, kInner = 256, kVocabulary = 96;

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

inline at::Tensor words(at::IntArrayRef shape, const at::Generator& random) {
  return at::randint(-(1LL << 31), 1LL << 31, shape, random, at::kLong).to(at::kInt);
}

inline void add_layer(Tensors& out, const std::string& name, std::int64_t inputs, std::int64_t outputs,
                      const GroupedForm& form, const at::Generator& random) {
  const auto groups = inputs / form.group;
  const bool gptq = form.method == "gptq";
  out.emplace_back(name + ".qweight",
                   words(gptq ? std::vector{inputs / 8, outputs} : std::vector{inputs, outputs / 8}, random));
  out.emplace_back(name + ".qzeros", words({groups, outputs / 8}, random));
  out.emplace_back(name + ".scales", at::rand({groups, outputs}, random).mul_(0.004).add_(0.004).to(at::kHalf));
  if (!gptq) return;
  auto group_of_input = at::arange(inputs, at::kInt).floor_divide(form.group).to(at::kInt);
  if (form.act_order) group_of_input = group_of_input.index_select(0, at::randperm(inputs, random));
  out.emplace_back(name + ".g_idx", group_of_input.contiguous());
}

}  // namespace grouped_llama

/// Two layers of 128 hidden and 256 inner units and a vocabulary of 96.
inline void write_grouped_llama(const std::string& folder, const GroupedForm& form) {
  using namespace grouped_llama;
  const auto random = at::detail::createCPUGenerator(11);
  const auto dense = [&](at::IntArrayRef shape) { return at::randn(shape, random).mul_(0.05).to(at::kHalf); };
  Tensors tensors = {{"model.embed_tokens.weight", dense({kVocabulary, kHidden})},
                     {"lm_head.weight", dense({kVocabulary, kHidden})},
                     {"model.norm.weight", at::ones({kHidden}, at::kHalf)}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::vector<std::tuple<const char*, std::int64_t, std::int64_t>> parts = {
        {"self_attn.q_proj", kHidden, kHidden},     {"self_attn.k_proj", kHidden, kHidden / 2},
        {"self_attn.v_proj", kHidden, kHidden / 2}, {"self_attn.o_proj", kHidden, kHidden},
        {"mlp.gate_proj", kHidden, kInner},         {"mlp.up_proj", kHidden, kInner},
        {"mlp.down_proj", kInner, kHidden}};
    for (const auto& [name, inputs, outputs] : parts)
      add_layer(tensors, std::string(layer) + name, inputs, outputs, form, random);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      tensors.emplace_back(std::string(layer) + norm + ".weight", at::ones({kHidden}, at::kHalf));
  }
  nlohmann::json quantization = {{"quant_method", form.method}, {"bits", 4}, {"group_size", form.group}};
  if (form.method == "gptq")
    quantization.update({{"desc_act", form.act_order}, {"sym", false}, {"checkpoint_format", "gptq"}});
  else
    quantization.update({{"zero_point", true}, {"version", "gemm"}});
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"hidden_act", "silu"},
                                 {"hidden_size", kHidden},
                                 {"intermediate_size", kInner},
                                 {"max_position_embeddings", 64},
                                 {"num_attention_heads", 4},
                                 {"num_hidden_layers", 2},
                                 {"num_key_value_heads", 2},
                                 {"rms_norm_eps", 1e-6},
                                 {"rope_theta", 10000.0},
                                 {"tie_word_embeddings", false},
                                 {"vocab_size", kVocabulary},
                                 {"bos_token_id", 1},
                                 {"eos_token_id", 2},
                                 {"dtype", "float16"},
                                 {"quantization_config", quantization}};
  std::filesystem::create_directories(folder);
  write_file_atomically(folder + "/config.json", config.dump());
  io::write_safetensors(folder + "/model.safetensors", tensors);
}

}  // namespace tessera::test
