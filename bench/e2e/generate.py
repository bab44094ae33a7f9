#!/usr/bin/env python3
"""Milliseconds of a generated token (of all rows together), by `tessera generate` and, in turns, by transformers.

    bench/e2e/generate.py MODEL [--tessera build/release/tessera] [--peer VENV/bin/python] [--rows 1,4,8] [--dtypes float32,bfloat16]
                          [--num_beams N]

With a cache; a time is the difference between 16 and 144 new tokens, of each the least of --rounds, so neither loading nor the prompt counts.
--peer: a Python with torch and transformers. All processors are used by both. Prints a Markdown table; the memory is the peak resident set of the process.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

SHORT, LONG = 16, 144
PEER = """
import resource, sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, dtype = sys.argv[1], getattr(torch, sys.argv[2])
rows, beams, short, long = map(int, sys.argv[3:])
tokens = AutoTokenizer.from_pretrained(folder)(sys.stdin.readline().strip(), return_tensors="pt")
tokens = {name: value.repeat(rows, 1) for name, value in tokens.items()}
model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
def seconds(new):
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(**tokens, num_beams=beams, max_new_tokens=new, min_new_tokens=new, do_sample=False)
    return time.perf_counter() - begin
seconds(2)
print(seconds(short), seconds(long), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
PROMPT = "The history of the pear is long and"


def ours(a: argparse.Namespace, dtype: str, rows: int) -> list[float]:
    """Seconds for few and for many new tokens, and MiB."""
    seconds, peak = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        prompts = os.path.join(folder, "prompts.jsonl")
        with open(prompts, "w", encoding="utf-8") as file:
            file.write((json.dumps(PROMPT) + "\n") * rows)
        for new in (SHORT, LONG):
            begin = time.perf_counter()
            process = subprocess.Popen([a.tessera, "generate", "--model", a.model, "--dtype", dtype, "--input_file", prompts, "--batch_size", str(rows),
                                        "--num_beams", str(a.num_beams), "--max_new_tokens", str(new), "--min_new_tokens", str(new),
                                        "--do_sample", "false"], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            seconds.append(time.perf_counter() - begin)
            if status != 0:
                sys.exit(f"tessera generate failed (status {status})")
            peak = max(peak, usage.ru_maxrss / 1024)
    return [*seconds, peak]


def theirs(a: argparse.Namespace, dtype: str, rows: int) -> list[float]:
    said = subprocess.run([a.peer, "-c", PEER, a.model, dtype, str(rows), str(a.num_beams), str(SHORT), str(LONG)], input=PROMPT + "\n",
                          capture_output=True, text=True, check=True)
    return [float(word) for word in said.stdout.split()[-3:]]


def best(rounds: list[list[float]]) -> tuple[float, float]:
    """Milliseconds a token, and MiB."""
    few, many, peak = map(min, zip(*rounds))
    return 1e3 * (many - few) / (LONG - SHORT), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tessera", default="build/release/tessera")
    parser.add_argument("--peer", default="", help="Python with torch and transformers; none: without a comparison")
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--num_beams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    print("| dtype | rows | ms a token | MiB |" + (" transformers, ms | MiB | times the speed |" if a.peer else ""))
    print("|---|---|---|---|" + ("---|---|---|" if a.peer else ""))
    for dtype in a.dtypes.split(","):
        for rows in map(int, a.rows.split(",")):
            mine, other = [], []
            for _ in range(a.rounds):
                mine.append(ours(a, dtype, rows))
                if a.peer:
                    other.append(theirs(a, dtype, rows))
            milliseconds, peak = best(mine)
            line = f"| {dtype} | {rows} | {milliseconds:.1f} | {peak:.0f} |"
            if a.peer:
                peers, peers_peak = best(other)
                line += f" {peers:.1f} | {peers_peak:.0f} | {peers / milliseconds:.2f} |"
            print(line, flush=True)


if __name__ == "__main__":
    main()
