#include "families/decoder_families.h"
#include "families/decoder_parse.h"

namespace tessera::families {

DecoderConfig parse_opt(const ConfigReader& in) {
  require(in, "layerdrop", 0.0, "is not supported: set it to 0");
  DecoderConfig c;
  c.model_type = in.get<std::string>("model_type", "");
  c.classes = {"OPTForCausalLM", "OPTModel", "OPTDecoderLayer", "OPTAttention", "OPTMLP", "LayerNorm"};
  c.vocab_size = in.positive("vocab_size", 50272);
  c.hidden_size = in.positive("hidden_size", 768);
  c.embedding_size = in.positive("word_embed_proj_dim", c.hidden_size);
  c.num_layers = in.count("num_hidden_layers", 12);
  c.intermediate_size = in.positive("ffn_dim", 3072);
  c.num_heads = 12;
  parse_head_count(in, c);
  c.max_positions = in.positive("max_position_embeddings", 2048);
  c.position = PositionKind::kLearned;
  c.position_rows = c.max_positions;
  c.position_offset = 2;
  c.positions_count_visible = true;
  const bool norm_first = in.get<bool>("do_layer_norm_before", true);
  c.residual = norm_first ? ResidualKind::kSequential : ResidualKind::kNormAfter;
  c.final_norm = norm_first && !in.get<bool>("_remove_final_layer_norm", false);
  c.norm = NormKind::kLayer;
  c.norm_eps = 1e-5;
  c.norm_affine = in.get<bool>("layer_norm_elementwise_affine", true);
  c.qkv_bias = c.o_bias = c.mlp_bias = in.get<bool>("enable_bias", true);
  c.mlp = MlpKind::kPlain;
  c.activation = parse_activation(in, "activation_function", "relu");
  c.residual_dropout = in.get<double>("dropout", 0.1);
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  c.names.base = "model.decoder";
  c.names.positions = "embed_positions";
  if (c.embedding_size != c.hidden_size) {
    c.names.project_in = "project_in";
    c.names.project_out = "project_out";
  }
  c.names.final_norm = "final_layer_norm";
  c.names.o = "out_proj";
  c.names.mlp = "";
  c.names.up = "fc1";
  c.names.down = "fc2";
  c.names.attention_norm = "self_attn_layer_norm";
  c.names.mlp_norm = "final_layer_norm";
  c.tied = in.get<bool>("tie_word_embeddings", true);
  c.padding_idx = padding_row(in, 1, c.vocab_size);
  c.pad_token_id = 1;
  c.bos_token_id = c.eos_token_id = 2;
  c.initializer_range = in.get<double>("init_std", 0.02);
  c.lora_targets = {"q_proj", "v_proj"};
  finish(in, c);
  return c;
}

}  // namespace tessera::families
