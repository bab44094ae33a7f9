#!/usr/bin/env python3
"""The Python stack's side of the comparison: causal language models on fixed rows of tokens, CPU ranks over gloo.

    pip install -r bench/peers/requirements.txt
    bench/peers/causal_lm.py prepare --model FOLDER --tokens tokens.safetensors --adapter adapter
    torchrun --nproc_per_node 2 bench/peers/causal_lm.py train --model FOLDER --tokens tokens.safetensors \\
        [--adapter adapter] --api fsdp2 --precision bf16 --out metrics.jsonl

`prepare` writes rows of random tokens (Zipf distributed) and an adapter to start from: LoRA (r 8, all linear layers), or what --peft says. `train`
runs the same job as bench/e2e/train_bench: one decoder layer is one unit, the root keeps its parameters from forward to
backward (torch's default), fused AdamW. Rank 0 appends one JSON line a step.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["prepare", "train"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--adapter", help="folder of the LoRA adapter; without it all weights are trained")
    parser.add_argument("--peft", default='{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": "all-linear"}',
                        help="prepare: the adapter's configuration, as JSON")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--api", choices=["fsdp1", "fsdp2", "fsdp2_compile", "none"], default="fsdp2", help="fsdp2_compile: each block by torch.compile")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--batch", type=int, default=2, help="rows of a rank in one step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--strategy", choices=["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"], default="FULL_SHARD")
    parser.add_argument("--activation_checkpointing", action="store_true")
    parser.add_argument("--load_in_4bit", action="store_true", help="bitsandbytes: NF4, double quantisation, bf16 computation and storage")
    parser.add_argument("--threads", type=int, help="of torch, where it is not OMP_NUM_THREADS")
    parser.add_argument("--out")
    return parser.parse_args()


def load(args):
    if args.load_in_4bit:
        from transformers import BitsAndBytesConfig

        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                    bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.bfloat16)
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, quantization_config=config, device_map="cpu")
        model.config.use_cache = False
        return model
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.config.use_cache = False
    return model


def prepare(args) -> None:
    from peft import get_peft_config, get_peft_model

    torch.manual_seed(0)
    model = load(args)
    vocab = model.config.vocab_size - 3
    weights = 1.0 / torch.arange(1, vocab + 1, dtype=torch.float64) ** 1.1
    ids = torch.multinomial(weights, args.rows * args.seq, replacement=True) + 3
    save_file({"input_ids": ids.view(args.rows, args.seq)}, args.tokens)
    if args.adapter:
        get_peft_model(model, get_peft_config(json.loads(args.peft))).save_pretrained(args.adapter)


def shard(model, args):
    layer = type(next(m for m in model.modules() if type(m).__name__.endswith("DecoderLayer")))
    if args.activation_checkpointing:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper

        layers = {m for m in model.modules() if isinstance(m, layer)}
        apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=lambda m: checkpoint_wrapper(m, checkpoint_impl=CheckpointImpl.NO_REENTRANT), check_fn=lambda m: m in layers)
    mixed = args.precision == "bf16"
    if args.api == "none":
        return model
    if args.api == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16) if mixed else None
        return FullyShardedDataParallel(
            model, sharding_strategy=ShardingStrategy[args.strategy], auto_wrap_policy=ModuleWrapPolicy({layer}), mixed_precision=policy,
            device_id=torch.device("cpu"), use_orig_params=bool(args.adapter))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if args.strategy == "NO_SHARD":  # FSDP2 says it as groups of one rank
        mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    options = {"mesh": mesh, "mp_policy": policy}
    kept = {} if args.strategy == "FULL_SHARD" else {"reshard_after_forward": False}
    for module in model.modules():
        if isinstance(module, layer):
            if args.api == "fsdp2_compile":
                module.compile()
            fully_shard(module, **options, **kept)
    return fully_shard(model, **options, **kept)


def train(args) -> None:
    if args.threads:
        torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = load(args)
    if args.adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, args.adapter, is_trainable=True)
    model.train()
    model = shard(model, args)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr, weight_decay=0.0, fused=True)
    rows = load_file(args.tokens)["input_ids"]
    for step in range(args.steps):
        first = (step * world + rank) * args.batch
        ids = rows[torch.arange(first, first + args.batch) % rows.shape[0]]
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16" and args.api == "none"):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().float() / world
        mean.item()
        seconds = time.perf_counter() - begin
        dist.all_reduce(mean)
        if rank == 0:
            with open(args.out, "a") as f:
                f.write(json.dumps({"step": step + 1, "loss": mean.item(), "step_seconds": seconds, "time": time.time()}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = parse()
    (prepare if arguments.job == "prepare" else train)(arguments)
