#!/usr/bin/env python3
"""The Python stack's side of bench/e2e/checkpoint.sh: saves and loads a model sharded by FSDP2, CPU ranks over gloo.

    torchrun --nproc_per_node 2 bench/peers/checkpoint.py --model FOLDER --folder FOLDER --kind state --out metrics.jsonl

Kinds: `torch_full` gathers the weights to rank 0, which writes them with torch.save; `dcp_full` and `state` use
torch.distributed.checkpoint for the weights, or for weights and AdamW's state; `background` is dcp.async_save of the latter.
Everything is flushed to the disk before the clock stops: DCP does that itself, a file of torch.save is given to os.fsync. Loading is
timed with nothing and with all in the page cache. One
JSON line for each repetition; seconds are those of the slowest rank, peak_rise_mib what its resident memory rose above before.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--kind", choices=["torch_full", "dcp_full", "state", "background"], default="state")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def memory_mib(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_cached(folder: Path) -> None:
    """Loading starts as after a restart of the machine: the page cache holds nothing of the files."""
    for file in filter(Path.is_file, folder.rglob("*")):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class Bench:
    def __init__(self, args):
        self.args, self.folder = args, Path(args.folder)
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for module in model.modules():
            if type(module).__name__.endswith("DecoderLayer"):
                fully_shard(module, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()  # so that there is a state
        self.optimizer.zero_grad(set_to_none=True)

    def write(self, row: dict) -> None:
        if dist.get_rank() == 0:
            row["bytes"] = sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file())
            with open(self.args.out, "a") as f:
                f.write(json.dumps({"kind": self.args.kind, **row}) + "\n")

    def measure(self, what: str, work) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        before = memory_mib("VmRSS:")
        dist.barrier()
        begin = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
        mine = {"seconds": seconds, "rise": max(0.0, memory_mib("VmHWM:") - before)}
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        self.write({"what": what, "seconds": max(r["seconds"] for r in ranks), "peak_rise_mib": [r["rise"] for r in ranks]})

    def save_torch(self) -> None:
        state = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() == 0:
            with open(self.folder / "model.pt", "wb") as f:
                torch.save(state, f)
                f.flush()
                os.fsync(f.fileno())

    def load_torch(self) -> None:
        state = torch.load(self.folder / "model.pt", mmap=True, weights_only=True) if dist.get_rank() == 0 else {}
        set_model_state_dict(self.model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))

    def state(self) -> dict:
        if self.args.kind == "dcp_full":
            return {"model": get_model_state_dict(self.model)}
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save_dcp(self) -> None:
        dcp.save(self.state(), checkpoint_id=self.folder / "dcp")

    def load_dcp(self) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=self.folder / "dcp")
        if self.args.kind == "dcp_full":
            set_model_state_dict(self.model, state["model"])
        else:
            set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def background(self) -> None:
        dist.barrier()
        begin = time.perf_counter()
        future = dcp.async_save(self.state(), checkpoint_id=self.folder / "dcp")
        held = time.perf_counter() - begin
        future.result()
        seconds = time.perf_counter() - begin
        self.write({"what": "save", "seconds": seconds, "held_seconds": held})

    def run(self) -> None:
        for _ in range(self.args.repeat):
            if dist.get_rank() == 0:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.mkdir(parents=True)
            dist.barrier()
            if self.args.kind == "background":
                self.background()
                continue
            expected = [p.detach().to_local().clone() for p in self.model.parameters()]
            self.measure("save", self.save_torch if self.args.kind == "torch_full" else self.save_dcp)
            for what in ("load_cold", "load"):
                for parameter in self.model.parameters():
                    parameter.detach().to_local().zero_()
                if what == "load_cold" and dist.get_rank() == 0:
                    forget_cached(self.folder)
                self.measure(what, self.load_torch if self.args.kind == "torch_full" else self.load_dcp)
                for parameter, value in zip(self.model.parameters(), expected):
                    assert torch.equal(parameter.detach().to_local(), value), "what was loaded differs from what was saved"
            del expected
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    arguments = parse()
    dist.init_process_group("cpu:gloo")
    torch.set_num_threads(1)
    Bench(arguments).run()
    dist.destroy_process_group()
