#!/usr/bin/env python3
"""Writes keys.json: every key of transformers' configuration classes of the families here, with another value than the
small model of `base` has, and whether that changes the reference.

    python3 make_keys.py [FAMILIES]    # transformers 4.57.3, torch; a minute. Rows of families that are not named stay

"effect" is true where the model cannot be built or computed with the value, or where parameters (names, shapes, first
values) or the outputs of a forward with dropout differ from those of `base`, both seeded alike. It is null for keys of
transformers 5, which version 4 leaves unread. A key that is null has a row where the reference computes, but not what it
does without the key; "same_as" are other changes that give the same numbers, if false or the number of heads does.
"""

import json
import pathlib
import sys
import warnings

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PretrainedConfig
from transformers.utils import logging

warnings.filterwarnings("ignore")
logging.set_verbosity_error()

LLAMA = dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=32, bos_token_id=1, eos_token_id=2, attention_dropout=0.1)
BERT = dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32)
DEBERTA = dict(relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=8, embedding_size=16, cls_dropout=0.1)
T5 = dict(vocab_size=24, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0)
GPT = dict(vocab_size=24, n_positions=32, n_embd=16, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
BASES = {
    "bert": BERT,
    "bloom": dict(vocab_size=24, hidden_size=16, n_layer=2, n_head=4),
    "camembert": BERT,
    "deberta": BERT | DEBERTA | dict(talking_head=False),
    "deberta-v2": BERT | DEBERTA | dict(position_buckets=4, share_att_key=False, norm_rel_ebd="none", conv_kernel_size=3, conv_act="tanh", conv_groups=1,
                                        attention_head_size=4),
    "distilbert": dict(vocab_size=24, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=32),
    "electra": BERT | dict(embedding_size=12),
    "falcon": dict(vocab_size=24, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=24, bos_token_id=1, eos_token_id=2),
    "gemma": LLAMA | dict(head_dim=4, pad_token_id=0),
    "gemma2": LLAMA | dict(head_dim=4, pad_token_id=0, sliding_window=3),
    "gemma3_text": LLAMA | dict(head_dim=4, pad_token_id=0, sliding_window=3, layer_types=["sliding_attention", "full_attention"] * 2),
    "glm": LLAMA | dict(head_dim=4, pad_token_id=0),
    "glm4": LLAMA | dict(head_dim=4, pad_token_id=0),
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": dict(vocab_size=24, max_position_embeddings=32, hidden_size=16, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
                    window_size=3, bos_token_id=1, eos_token_id=2, attention_dropout=0.1, resid_dropout=0.1, embed_dropout=0.1),
    "gpt_neox": dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, rotary_pct=0.5, max_position_embeddings=32),
    "gptj": GPT | dict(rotary_dim=2),
    "granite": LLAMA,
    "llama": LLAMA,
    "ministral": LLAMA | dict(head_dim=4, sliding_window=4),
    "mistral": LLAMA | dict(sliding_window=4),
    "mixtral": LLAMA | dict(num_local_experts=4, num_experts_per_tok=2, output_router_logits=True),
    "mt5": T5,
    "olmo": LLAMA | dict(pad_token_id=0),
    "olmo2": LLAMA | dict(pad_token_id=0),
    "olmoe": LLAMA | dict(pad_token_id=0, num_experts=4, num_experts_per_tok=2, output_router_logits=True),
    "opt": dict(vocab_size=24, hidden_size=16, word_embed_proj_dim=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32),
    "phi": LLAMA | dict(partial_rotary_factor=0.5),
    "phi3": LLAMA | dict(pad_token_id=0),
    "qwen2": LLAMA,
    "qwen2_moe": LLAMA | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=28,
                              output_router_logits=True),
    "qwen3": LLAMA | dict(head_dim=4),
    "qwen3_moe": LLAMA | dict(head_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, output_router_logits=True),
    "roberta": BERT,
    "smollm3": LLAMA | dict(pad_token_id=0),
    "stablelm": LLAMA | dict(partial_rotary_factor=0.5),
    "starcoder2": LLAMA,
    "t5": T5,
    "umt5": T5,
    "xlm-roberta": BERT,
}
SLIDING = ["sliding_attention", "full_attention"] * 2
OTHERS = {  # where no rule makes a sensible value
    "hidden_act": "relu", "activation_function": "silu", "activation": "relu", "hidden_activation": "relu", "feed_forward_proj": "gated-silu",
    "dense_act_fn": "silu", "position_embedding_type": "relative_key", "problem_type": "regression", "architectures": ["OtherModel"],
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "sliding_window": 2, "layer_types": SLIDING, "no_rope_layers": [0, 1, 1, 1],
    "no_rope_layer_interval": 2, "max_window_layers": 1, "pruned_heads": {"0": [0]}, "id2label": {"0": "A", "1": "B", "2": "C"},
    "label2id": {"A": 0, "B": 1, "C": 2}, "num_ln_in_parallel_attn": 2, "num_kv_heads": 2, "n_inner": 20, "classifier_dropout": 0.4,
    "summary_activation": "tanh", "summary_type": "mean", "tokenizer_class": "OtherTokenizer", "dtype": "bfloat16", "torch_dtype": "bfloat16",
    "task_specific_params": {"a": {"num_beams": 2}}, "head_dim": 8, "rotary_dim": 4, "finetuning_task": "mnli", "prefix": "a: ",
    "_name_or_path": "elsewhere", "transformers_version": "4.0.0", "bad_words_ids": [[3]], "exponential_decay_length_penalty": [2, 1.5],
    "forced_bos_token_id": 3, "forced_eos_token_id": 3, "suppress_tokens": [3], "begin_suppress_tokens": [3], "num_attention_heads": 2,
    "n_head": 2, "num_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 48, "n_positions": 48, "word_embed_proj_dim": 8,
    "pos_att_type": "c2p", "norm_rel_ebd": "layer_norm", "conv_kernel_size": 5, "conv_act": "relu", "conv_groups": 2, "pooler_hidden_act": "tanh", "embedding_size": 12,
    "query_pre_attn_scalar": 16, "attn_logit_softcapping": 0.01, "final_logit_softcapping": 0.01, "partial_rotary_factor": 0.5, "rotary_pct": 1.0,
    "original_max_position_embeddings": 16, "cross_attention_hidden_size": 8, "sep_token_id": 3, "use_sliding_window": True,
    "rope_theta": 100.0, "rope_local_base_freq": 100.0, "sliding_window_pattern": 2, "rotary_emb_base": 100, "hidden_size": 32, "n_embd": 32, "d_model": 32,
    "attention_types": [[["local"], 2]], "attention_layers": ["local", "local"], "clip_qkv": 0.05, "window_size": 2, "mlp_only_layers": [1], "relative_attention_max_distance": 5, "relative_attention_num_buckets": 8,
}
# What the script itself needs; what changes only which of equally likely dropout masks are drawn.
NEVER_SIMPLE = {"model_type", "return_dict", "torchscript", "chunk_size_feed_forward"}
COMBINATIONS = {
    "bloom": [{"slow_but_exact": True, "pretraining_tp": 2}],
    "falcon": [{"alibi": True}, {"new_decoder_architecture": True, "num_kv_heads": 2}, {"multi_query": False}],
    "gpt_neox": [{"head_dim": 12}],
    "qwen2": [{"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 2}],
    "qwen3": [{"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 2}],
    "qwen2_moe": [{"use_sliding_window": True, "sliding_window": 2}, {"mlp_only_layers": [1], "decoder_sparse_step": 2}],
    "qwen3_moe": [{"use_sliding_window": True, "sliding_window": 2}, {"mlp_only_layers": [0, 2, 7]}],
    "smollm3": [{"use_sliding_window": True, "sliding_window": 2}, {"layer_types": SLIDING, "sliding_window": 2}],
    "llama": [{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0}}, {"pad_token_id": -1}],
    "bert": [{"is_decoder": True, "add_cross_attention": True}],
    "deberta": [{"pos_att_type": "p2c|C2P"}, {"pos_att_type": ["c2p", "p2p"]}, {"type_vocab_size": 2}, {"legacy": False, "tie_word_embeddings": False}],
    "deberta-v2": [{"pos_att_type": "p2c|C2P"}, {"pos_att_type": ["c2p", "p2p"]}, {"conv_kernel_size": 4}, {"position_buckets": 1}, {"norm_rel_ebd": "None | Layer_Norm"},
                   {"legacy": False, "tie_word_embeddings": False}],
}
NEWER = {  # of transformers 5
    "*": {"problem_type": None, "output_hidden_states": True, "quantization_config": {"quant_method": "gptq", "bits": 4}, "auto_map": {"AutoConfig": "c.C"}},
    "gemma2": {"use_bidirectional_attention": True},
    "gemma3_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 100.0}, "sliding_attention": None}},
    "t5": {"scale_decoder_outputs": False},
    **{f: {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}} for f in
       ("falcon", "gemma", "gemma2x", "glm", "glm4", "gpt_neox", "granite", "llama", "mistral", "mixtral", "olmo", "olmo2", "olmoe", "phi", "phi3", "qwen2",
        "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2")},
}


def other(key, value):
    if key in OTHERS:
        return OTHERS[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if key.endswith("_id") else value * 2 if value else 1
    if isinstance(value, float):
        return value / 2 if value else 0.25
    return 3  # a token, or another number that is not given


def build(family, changes):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family].from_dict(BASES[family] | {"attn_implementation": "eager"} | changes)
    config.return_dict = True
    kind = AutoModelForMaskedLM if "bert" in family or family == "electra" else AutoModelForSeq2SeqLM if "t5" in family else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").float()
    torch.manual_seed(1)  # as unlike first values as trained ones
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape)
    return model.train()


def outputs(family, changes):
    model = build(family, changes)
    torch.manual_seed(2)
    ids = torch.randint(3, 24, (2, 9))
    ids[0, :3] = BASES[family].get("pad_token_id", 1) or 0
    found = model(input_ids=ids, labels=ids)
    found.loss.backward()
    out = {"loss": found.loss.detach(), "logits": found.logits.detach()}
    for name, p in model.named_parameters():
        out[name] = p.detach()
        if p.grad is not None:
            out["grad." + name] = p.grad
    return out


def differ(found, base):
    return found.keys() != base.keys() or any(found[k].shape != base[k].shape or not torch.equal(found[k], base[k]) for k in base)


def has_effect(family, changes, base):
    try:
        return differ(outputs(family, changes), base)
    except Exception:
        return True


def null_row(family, key):
    """None: the reference cannot compute with it, or null is no other than no key."""
    try:
        found = outputs(family, {key: None})
        if not has_effect_without(family, key, found):
            return None
    except Exception:
        return None
    row = {"changes": {key: None}, "effect": True}
    for value in (False, BASES[family].get("num_attention_heads")):
        if value is not None and not has_effect(family, {key: value}, found):
            return row | {"same_as": {key: value}}
    return row


def has_effect_without(family, key, found):
    given = BASES[family]
    BASES[family] = {k: v for k, v in given.items() if k != key}
    try:
        return has_effect(family, {}, found)
    finally:
        BASES[family] = given


def keys_of(family):
    cls = CONFIG_MAPPING[family]
    shown = cls.from_dict(BASES[family]).to_dict()
    keys = {k: v for k, v in shown.items() if k not in NEVER_SIMPLE}
    for alias, key in cls.attribute_map.items():
        keys.setdefault(alias, shown[key])
    for key in ("torch_dtype", "head_dim", "num_key_value_heads", "partial_rotary_factor"):
        keys.setdefault(key, None)
    return keys


path = pathlib.Path(__file__).with_name("keys.json")
result = {family: entry for family, entry in json.loads(path.read_text()).items() if family in BASES} if sys.argv[1:] else {}
for family in sys.argv[1:] or BASES:
    base = outputs(family, {})
    assert not has_effect(family, {}, base), family  # the script is deterministic
    rows = []
    for key, value in sorted(keys_of(family).items()):
        changes = {key: other(key, value)}
        if key == "num_return_sequences":  # which may not be more than the beams
            changes["num_beams"] = 2
        rows.append({"changes": changes, "effect": has_effect(family, changes, base)})
        if null := null_row(family, key):
            rows.append(null)
    for changes in COMBINATIONS.get(family, []):
        rows.append({"changes": changes, "effect": has_effect(family, changes, base)})
    for key, value in (NEWER["*"] | NEWER.get(family, {})).items():
        rows.append({"changes": {key: value}, "effect": None})
    result[family] = {"base": BASES[family], "rows": rows}
    print(family, len(rows), sum(row["effect"] is True for row in rows))
text = "{\n" + ",\n".join(
    f' {json.dumps(family)}: {{"base": {json.dumps(entry["base"])}, "rows": [\n' + ",\n".join("  " + json.dumps(row) for row in entry["rows"]) + "\n ]}"
    for family, entry in sorted(result.items())) + "\n}\n"
path.write_text(text)
