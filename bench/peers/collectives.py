#!/usr/bin/env python3
"""The Python stack's side of bench/micro/comm_bench.cc: the same collectives under gloo, ranks on one host.

    torchrun --nproc_per_node 2 bench/peers/collectives.py [--out FILE] [MiB ...]

A line names the full buffer's size (world size x a rank's slice) and the median in ms over repetitions of the slowest rank.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist


def milliseconds(run) -> float:
    dist.barrier()
    begin = time.perf_counter()
    run()
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item() * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mib", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--out")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    for mib in args.mib:
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            part = (mib << 20) // dtype.itemsize // world
            full, slice_ = torch.ones(part * world, dtype=dtype), torch.ones(part, dtype=dtype)
            runs = {"all_gather": lambda: dist.all_gather_into_tensor(full, slice_),
                    "reduce_scatter": lambda: dist.reduce_scatter_tensor(slice_, full),
                    "all_reduce": lambda: dist.all_reduce(full)}
            times = {op: [] for op in runs}
            for repetition in range(9 if mib < 100 else 5):
                for op, run in runs.items():
                    times[op].append(milliseconds(run))
            for op, values in times.items():
                line = json.dumps({"name": "gloo", "op": op, "dtype": name, "mib": mib, "ms": round(statistics.median(values[2:]), 4)})
                if dist.get_rank() == 0:
                    print(line, flush=True)
                    if args.out:
                        with open(args.out, "a") as f:
                            f.write(line + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
