#!/usr/bin/env python3
"""A training step of every family, all weights or LoRA, against what matrix products alone reach: the share of the GEMM rate.

    bench/e2e/families.py [--tessera build/release/tessera] [--precision bf16] [--steps 8] [--lora] [FAMILY ...]
    bench/e2e/families.py --memory [FAMILY ...]     # what a rank holds beside the formula of `tessera estimate`

Models are few layers of realistic width with random weights, so that the table takes minutes; 2 ranks of one thread, 2 rows of 256 tokens each.
A token counts 6 operations for each weight of a linear layer and of the head, with LoRA (r 8) 4; attention 12 a layer for each of its query's elements and visible
keys (DeBERTa: and for positions); lookups, norms, activations, biases count none. The share is by the processor time of rank 0, so that other programs on the machine
disturb it less: what the step computes, of what products compute in the same time. Prints a Markdown table.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SEQ, BATCH, RANKS = 256, 2, 2
LORA = ["--lora_r", "8"]
VOCAB, HIDDEN, HEADS, LAYERS, WIDE = 8192, 768, 12, 3, 3072
COMMON = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02}
NEW = {**COMMON, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "max_position_embeddings": 512}
GPT = {**COMMON, "n_embd": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "n_positions": 512, "activation_function": "gelu_new",
       "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {**NEW, "intermediate_size": 2048, "num_key_value_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
T5 = {**COMMON, "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": LAYERS, "num_decoder_layers": LAYERS, "is_encoder_decoder": True,
      "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "dropout_rate": 0.0, "relative_attention_num_buckets": 32}
FALCON = {**NEW, "activation": "gelu", "alibi": False, "bias": False, "ffn_hidden_size": WIDE, "multi_query": True, "parallel_attn": True}
BERT = {**NEW, "intermediate_size": WIDE, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": 2, "pad_token_id": 0}
FAMILIES = {
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA),
    "mixtral": ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 1024}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen2 152k": ("Qwen2ForCausalLM", {**LLAMA, "vocab_size": 151936, "num_hidden_layers": 6, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 64}),
    "phi3": ("Phi3ForCausalLM", {**LLAMA, "pad_token_id": 0}),
    "gemma": ("GemmaForCausalLM", {**LLAMA, "head_dim": 64, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64,
                                     "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 128,
                                     "tie_word_embeddings": True}),
    "gpt2": ("GPT2LMHeadModel", {**GPT, "layer_norm_epsilon": 1e-5}),
    "gpt2 124M": ("GPT2LMHeadModel", {**GPT, "layer_norm_epsilon": 1e-5, "vocab_size": 50257, "n_layer": 12}),
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 32, "tie_word_embeddings": False}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**NEW, "hidden_act": "gelu", "intermediate_size": WIDE, "rotary_pct": 0.25, "use_parallel_residual": True,
                                        "tie_word_embeddings": False}),
    "falcon": ("FalconForCausalLM", {**FALCON, "new_decoder_architecture": False}),
    "bloom": ("BloomForCausalLM", {**COMMON, "hidden_size": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "hidden_dropout": 0.0,
                                   "attention_dropout": 0.0, "pad_token_id": 3}),
    "opt": ("OPTForCausalLM", {**NEW, "ffn_dim": WIDE, "word_embed_proj_dim": HIDDEN, "activation_function": "relu", "dropout": 0.0,
                               "do_layer_norm_before": True, "pad_token_id": 1}),
    "t5": ("T5ForConditionalGeneration", {**T5, "d_ff": 2048, "feed_forward_proj": "relu"}),
    "t5 v1.1": ("T5ForConditionalGeneration", {**T5, "d_ff": 1024, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "gemma3_text": ("Gemma3ForCausalLM", {**LLAMA, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64,
                                          "sliding_window": 128, "tie_word_embeddings": True}),
    "glm": ("GlmForCausalLM", {**LLAMA, "head_dim": 64, "attention_bias": True, "pad_token_id": 0}),
    "glm4": ("Glm4ForCausalLM", {**LLAMA, "head_dim": 64, "attention_bias": True, "pad_token_id": 0}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", {**GPT, "activation_function": "gelu_pytorch_tanh", "multi_query": True}),
    "gpt_neo": ("GPTNeoForCausalLM", {**COMMON, "hidden_size": HIDDEN, "num_heads": HEADS, "num_layers": 4, "max_position_embeddings": 512,
                                      "attention_types": [[["global", "local"], 2]], "window_size": 256, "embed_dropout": 0.0,
                                      "attention_dropout": 0.0, "resid_dropout": 0.0}),
    "granite": ("GraniteForCausalLM", {**LLAMA, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
                                       "attention_multiplier": 0.015625}),
    "olmo": ("OlmoForCausalLM", {**LLAMA, "clip_qkv": None}),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "olmoe": ("OlmoeForCausalLM", {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 1024}),
    "phi": ("PhiForCausalLM", {**NEW, "intermediate_size": WIDE, "num_key_value_heads": HEADS, "hidden_act": "gelu_new",
                               "partial_rotary_factor": 0.5, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 1024,
                                          "shared_expert_intermediate_size": 1024}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**LLAMA, "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}),
    "smollm3": ("SmolLM3ForCausalLM", {**LLAMA, "pad_token_id": 0}),
    "stablelm": ("StableLmForCausalLM", {**LLAMA, "partial_rotary_factor": 0.25}),
    "starcoder2": ("Starcoder2ForCausalLM", {**LLAMA, "intermediate_size": WIDE, "hidden_act": "gelu_pytorch_tanh", "use_bias": True,
                                             "embedding_dropout": 0.0, "tie_word_embeddings": True}),
    "bert": ("BertForMaskedLM", BERT),
    "roberta": ("RobertaForMaskedLM", {**BERT, "pad_token_id": 1, "max_position_embeddings": 514}),
    "distilbert": ("DistilBertForMaskedLM", {**COMMON, "dim": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS, "hidden_dim": WIDE, "dropout": 0.0,
                                             "attention_dropout": 0.0, "max_position_embeddings": 512, "pad_token_id": 0}),
    "electra": ("ElectraForMaskedLM", {**BERT, "embedding_size": HIDDEN}),
    "deberta": ("DebertaForMaskedLM", {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 128}),
    "deberta-v2": ("DebertaV2ForMaskedLM", {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 128,
                                            "share_att_key": True, "norm_rel_ebd": "layer_norm"}),
}


def write_config(folder: Path, family: str) -> dict:
    architecture, keys = FAMILIES[family]
    config = {"architectures": [architecture], "model_type": family.split()[0], **keys}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return config


def write_tokens(path: Path) -> None:
    ids = [4 + (i * 7919 + i * i) % (VOCAB - 4) for i in range(16 * SEQ)]
    data = struct.pack(f"<{len(ids)}q", *ids)
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": [16, SEQ], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


# Lookups, heads (counted by their size), and what multiplies positions.
NOT_OF_TOKENS = ("embed", "wte", "wpe", "shared.weight", "relative", "lm_head", "decoder.weight", "vocab_projector", "pos_proj", "pos_q_proj")


def linear_weights(folder: Path, config: dict) -> float:
    """Elements of linear weights that a token is multiplied with, the head's among them."""
    names = {}
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as f:
            names.update(json.loads(f.read(struct.unpack("<Q", f.read(8))[0])))
    total = 0.0
    for name, entry in names.items():
        if name == "__metadata__" or len(entry["shape"]) != 2 or any(word in name for word in NOT_OF_TOKENS):
            continue
        share = config["num_experts_per_tok"] / (config.get("num_local_experts") or config["num_experts"]) if ".experts." in name else 1.0
        total += share * entry["shape"][0] * entry["shape"][1]
    return total + config["vocab_size"] * next(config[key] for key in ("hidden_size", "n_embd", "d_model", "dim") if key in config)


def flops_of_a_rank(folder: Path, config: dict, lora: bool) -> float:
    queries = config["d_kv"] * config["num_heads"] if "d_kv" in config else HIDDEN
    layers = next(config[key] for key in ("n_layer", "num_layers", "num_hidden_layers") if key in config)
    half, whole = 0.5 * SEQ, SEQ  # visible keys: of causal attention, of one that sees all
    kind = config["architectures"][0]
    keys = layers * (whole + half + whole if "T5" in kind else whole if "MaskedLM" in kind else half)
    # DeBERTa's positions, for queries and for keys: they are multiplied by a weight, and tokens by them (half of what attention takes for a key).
    span = config.get("position_buckets", config.get("max_relative_positions", 0))
    tables = layers * len(config.get("pos_att_type", []))
    keys += tables * span
    of_weight = 4 if lora else 6
    of_positions = tables * 2 * span * of_weight * HIDDEN * HIDDEN
    return BATCH * SEQ * (of_weight * linear_weights(folder, config) + 12 * queries * keys) + of_positions


def train(tessera: Path, folder: Path, work: Path, *flags: str) -> list:
    """The lines of a run's metrics."""
    out = work / "metrics.jsonl"
    out.unlink(missing_ok=True)
    subprocess.run([tessera, "launch", "--use_cpu", "--num_processes", str(RANKS), "--num_cpu_threads_per_process", "1", tessera.parent / "bench/train_bench",
                    "--model", folder, "--tokens", work / "tokens.safetensors", "--batch", str(BATCH), "--out", out, *flags],
                   check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in out.read_text().splitlines()]


def make_model(tessera: Path, family: str, work: Path) -> dict:
    """In work/model; returns its config.json."""
    config = write_config(work / "config", family)
    write_tokens(work / "tokens.safetensors")
    subprocess.run([tessera, "init-model", work / "config", work / "model"], check=True, stdout=subprocess.DEVNULL)
    return config


def measure_memory(tessera: Path, family: str, work: Path) -> Iterator[list]:
    """A row for each way to train."""
    make_model(tessera, family, work)
    for trained, adapter in (("all", []), ("LoRA", LORA)):
        for precision, kept, checkpointing in (("fp32", "kept", []), ("bf16", "kept", []), ("fp32", "made again", ["--activation_checkpointing"])):
            line = train(tessera, work / "model", work, "--precision", precision, "--steps", "2", "--memory", *adapter, *checkpointing)[-1]
            yield [family, trained, precision, kept, f"{line['formula_mib']:.0f}", f"{line['held_mib']:.0f}",
                   f"{line['held_mib'] / line['formula_mib']:.2f}", f"{line['base_mib']:.0f}"]


def measure(tessera: Path, family: str, precision: str, steps: int, lora: bool, work: Path) -> list:
    config, folder = make_model(tessera, family, work), work / "model"
    lines = train(tessera, folder, work, "--precision", precision, "--steps", str(steps), *(LORA if lora else []))
    timed = [line for line in lines if "step" in line][2:]
    last = next(line for line in lines if "gemm_gflops" in line)
    cpu, clock = (statistics.median(line[key] for line in timed) for key in ("cpu_seconds", "step_seconds"))
    work_gflop = 1e-9 * flops_of_a_rank(folder, config, lora)
    return [family, f"{work_gflop:.0f}", f"{1e3 * cpu:.0f}", f"{1e3 * clock:.0f}", f"{last['cpu_gemm_gflops'][precision]:.0f}",
            f"{work_gflop / cpu / last['cpu_gemm_gflops'][precision]:.2f}", f"{work_gflop / clock / last['gemm_gflops'][precision]:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", type=Path, default=Path(__file__).resolve().parents[2] / "build/release/tessera")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lora", action="store_true", help="adapters on all linear layers instead of all weights")
    parser.add_argument("--memory", action="store_true", help="what a rank holds, in MiB; steps and precision are then its own")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="of: " + ", ".join(FAMILIES))
    args = parser.parse_args()
    unknown = [family for family in args.families if family not in FAMILIES]
    if unknown:
        parser.error(f"unknown family {unknown[0]!r}; expected one of {', '.join(FAMILIES)}")
    if args.steps < 3:
        parser.error("--steps: at least 3, for the first two are not counted")
    if args.memory:
        print("| family | trained | precision | activations | formula MiB | held MiB | held / formula | base MiB |\n|" + " --- |" * 8)
        for family in args.families or FAMILIES:
            with tempfile.TemporaryDirectory() as work:
                for row in measure_memory(args.tessera.resolve(), family, Path(work)):
                    print("| " + " | ".join(row) + " |", flush=True)
        return
    print("| family | GFLOP of a rank | processor ms | ms | GFLOP/s of products | share, processor time | share, clock |\n|" + " --- |" * 7)
    for family in args.families or FAMILIES:
        with tempfile.TemporaryDirectory() as work:
            print("| " + " | ".join(measure(args.tessera.resolve(), family, args.precision, args.steps, args.lora, Path(work))) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
