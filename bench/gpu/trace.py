"""Sums up a trace of libtorch's profiler (train_bench --trace): python3 bench/gpu/trace.py FILE [LINES]."""

import collections
import json
import re
import sys


def main():
    events = json.load(open(sys.argv[1]))["traceEvents"]
    lines = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    work = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    work.sort(key=lambda e: e["ts"])
    by_name, busy, end = collections.defaultdict(lambda: [0, 0.0]), 0.0, 0.0
    for e in work:
        entry = by_name[e["name"] if not e["name"].startswith("void at::") else full(e["name"])]
        entry[0] += 1
        entry[1] += e["dur"]
        busy += max(0.0, e["ts"] + e["dur"] - max(end, e["ts"]))
        end = max(end, e["ts"] + e["dur"])
    span = end - work[0]["ts"] if work else 0
    print(f"{len(work)} kernels and copies, busy {busy / 1e3:.1f} of {span / 1e3:.1f} ms")
    for name, (count, total) in sorted(by_name.items(), key=lambda x: -x[1][1])[:lines]:
        print(f"{total / 1e3:8.2f} ms {100 * total / busy:5.1f}% {count:6} {name[:150]}")


def full(name):
    """Of a kernel of ATen's, what tells it from others."""
    return re.sub(r"at::native::|\(anonymous namespace\)::|c10::|std::|void ", "", name)


main()
