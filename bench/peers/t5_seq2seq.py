#!/usr/bin/env python3
"""The Python stack's side of the comparison: T5 on `sentence@label` rows under torch FSDP1 or FSDP2, CPU ranks over gloo.

    pip install -r bench/peers/requirements.txt
    torchrun --nproc_per_node 2 bench/peers/t5_seq2seq.py --model FOLDER --data FILE --api fsdp2 [--full] --out metrics.jsonl

Same job as `tessera seq2seq`: batch 8 a rank, 64 tokens padded, labels of two tokens, fp32, AdamW with a linear schedule;
LoRA r 8, alpha 32 on q and v without dropout (so that losses can be compared), or --full: all parameters. One T5 block is one
unit, the root keeps its parameters from forward to backward (torch's default). Rank 0 appends one JSON line a step.
"""

import argparse
import json
import random
import time

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, get_linear_schedule_with_warmup
from transformers.models.t5.modeling_t5 import T5Block


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--api", choices=["fsdp1", "fsdp2", "ddp"], default="fsdp2")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max_length", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--max_steps", type=int, default=20)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def read_rows(path: str) -> list[tuple[str, str]]:
    with open(path, encoding="iso-8859-1") as f:
        rows = [tuple(line.rstrip("\n").rsplit("@", 1)) for line in f if "@" in line]
    random.Random(42).shuffle(rows)
    return rows


def shard(model, api: str):
    if api == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if api == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({T5Block}), device_id=torch.device("cpu"), use_orig_params=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, T5Block):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    args = parse()
    torch.manual_seed(42)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32)
    model.config.use_cache = False
    if not args.full:
        model = get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", r=8, lora_alpha=32, lora_dropout=0.0, target_modules=["q", "v"]))
    model.train()
    model = shard(model, args.api)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, args.max_steps)
    rows = read_rows(args.data)

    for step in range(args.max_steps):
        first = (step * world + rank) * args.batch
        batch = [rows[(first + i) % len(rows)] for i in range(args.batch)]
        source = tokenizer([s for s, _ in batch], max_length=args.max_length, padding="max_length", truncation=True, return_tensors="pt")
        labels = tokenizer([t for _, t in batch], max_length=2, padding="max_length", truncation=True, return_tensors="pt").input_ids
        begin = time.perf_counter()
        loss = model(**source, labels=labels.masked_fill(labels == tokenizer.pad_token_id, -100)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach() / world
        seconds = time.perf_counter() - begin
        dist.all_reduce(mean)
        if rank == 0:
            with open(args.out, "a") as f:
                f.write(json.dumps({"step": step + 1, "loss": mean.item(), "step_seconds": seconds, "time": time.time()}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
