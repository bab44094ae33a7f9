"""A tiny Llama whose matrices are GGUF's K blocks and Q8_0: random bytes with scales of a useful size, so that no quantiser
is needed. k_quants.safetensors: the logits of transformers' LlamaForCausalLM over the values that the package gguf reads.

    python make_k_quants.py     # writes here; needs gguf, torch, safetensors, transformers
"""
import os
import gguf, numpy as np, torch
from gguf import GGMLQuantizationType as Q
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, INNER, HEADS, KV_HEADS, VOCAB, LAYERS = 256, 256, 4, 1, 96, 2
rng = np.random.default_rng(5)
# Where a block keeps its float16 scale and minimum.
PLACES = {Q.Q2_K: (80, 82), Q.Q3_K: (108, None), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208, None), Q.Q8_0: (0, None)}
# Of a random block's values, so that all forms come out alike.
SIZES = {Q.Q2_K: 2e-3, Q.Q3_K: 8e-4, Q.Q4_K: 1.5e-4, Q.Q5_K: 8e-5, Q.Q6_K: 3e-5, Q.Q8_0: 4e-4}


def blocks(rows, cols, form):
    """Bytes [rows, bytes of a row] and their values [rows, cols]."""
    elements, size = gguf.GGML_QUANT_SIZES[form]
    raw = rng.integers(0, 256, (rows, cols // elements, size), dtype=np.uint8)
    scale, minimum = PLACES[form]
    half = lambda x: np.frombuffer(np.float16(x).tobytes(), np.uint8)
    raw[:, :, scale:scale + 2] = half(SIZES[form])
    if minimum is not None: raw[:, :, minimum:minimum + 2] = half(SIZES[form] * (1.5 if form == Q.Q2_K else 8 if form == Q.Q4_K else 16))
    raw = raw.reshape(rows, -1)
    return raw, gguf.quants.dequantize(raw, form).reshape(rows, cols)


def unpermuted(values, heads):
    """llama.cpp's converter interleaves the halves of each head's rows of query and key."""
    rows, cols = values.shape
    return values.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                     num_key_value_heads=KV_HEADS, vocab_size=VOCAB, max_position_embeddings=64, rms_norm_eps=1e-6,
                     rope_theta=10000.0, tie_word_embeddings=False, attn_implementation="eager")
w = gguf.GGUFWriter(os.path.join(HERE, "k_quants.gguf"), "llama")
w.add_block_count(LAYERS), w.add_context_length(64), w.add_embedding_length(HIDDEN), w.add_feed_forward_length(INNER)
w.add_head_count(HEADS), w.add_head_count_kv(KV_HEADS), w.add_layer_norm_rms_eps(1e-6), w.add_rope_freq_base(10000.0)
w.add_vocab_size(VOCAB), w.add_rope_dimension_count(HIDDEN // HEADS)
state = {}


def dense(name, in_file, value):
    w.add_tensor(in_file, value)
    state[name] = torch.from_numpy(value)


dense("model.embed_tokens.weight", "token_embd.weight", rng.normal(0, 0.05, (VOCAB, HIDDEN)).astype(np.float16))
dense("lm_head.weight", "output.weight", rng.normal(0, 0.05, (VOCAB, HIDDEN)).astype(np.float16))
dense("model.norm.weight", "output_norm.weight", rng.normal(1, 0.1, HIDDEN).astype(np.float32))
PARTS = [("self_attn.q_proj", "attn_q", HIDDEN, HEADS), ("self_attn.k_proj", "attn_k", 64, KV_HEADS),
         ("self_attn.v_proj", "attn_v", 64, 0), ("self_attn.o_proj", "attn_output", HIDDEN, 0),
         ("mlp.gate_proj", "ffn_gate", INNER, 0), ("mlp.up_proj", "ffn_up", INNER, 0), ("mlp.down_proj", "ffn_down", HIDDEN, 0)]
FORMS = [[Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.Q4_K, Q.Q4_K, Q.Q3_K, Q.Q6_K], [Q.Q2_K, Q.Q8_0, Q.Q5_K, Q.Q3_K, Q.Q2_K, Q.Q4_K, Q.Q5_K]]
for layer in range(LAYERS):
    for (name, in_file, rows, heads), form in zip(PARTS, FORMS[layer]):
        raw, values = blocks(rows, HIDDEN, form)
        w.add_tensor(f"blk.{layer}.{in_file}.weight", raw, raw_dtype=form)
        print(form.name, values.std(), values.mean())
        state[f"model.layers.{layer}.{name}.weight"] = torch.from_numpy(unpermuted(values, heads) if heads else values)
    for name, in_file in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")]:
        dense(f"model.layers.{layer}.{name}.weight", f"blk.{layer}.{in_file}.weight", rng.normal(1, 0.1, HIDDEN).astype(np.float32))
w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()

model = LlamaForCausalLM(config).float().eval()
model.load_state_dict({k: v.float() for k, v in state.items()})
ids = torch.arange(20).view(2, 10) * 7 % VOCAB
with torch.no_grad(): logits = model(input_ids=ids).logits
save_file({"input_ids": ids, "logits": logits.contiguous()}, os.path.join(HERE, "k_quants.safetensors"), {"format": "pt"})
print(logits.std())
