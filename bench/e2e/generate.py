#!/usr/bin/env python3
"""Milliseconds of a generated token (of all rows together), by `tessera generate` and, in turns, by transformers.

    bench/e2e/generate.py MODEL [--tessera build/release/tessera] [--peer VENV/bin/python] [--rows 1,4,8] [--dtypes float32,bfloat16]

Greedy, with a cache; a time is the difference of two runs with 16 and 144 new tokens, so neither loading nor the prompt counts. The least of --rounds.
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
folder, dtype, rows, short, long = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
tokens = AutoTokenizer.from_pretrained(folder)(sys.stdin.readline().strip(), return_tensors="pt")
tokens = {name: value.repeat(rows, 1) for name, value in tokens.items()}
model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
def seconds(new):
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(**tokens, max_new_tokens=new, min_new_tokens=new, do_sample=False)
    return time.perf_counter() - begin
seconds(2)
print(1e3 * (seconds(long) - seconds(short)) / (long - short), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
PROMPT = "The history of the pear is long and"


def ours(a: argparse.Namespace, dtype: str, rows: int) -> tuple[float, float]:
    """Milliseconds a token and MiB."""
    seconds, peak = {}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        prompts = os.path.join(folder, "prompts.jsonl")
        with open(prompts, "w", encoding="utf-8") as file:
            file.write((json.dumps(PROMPT) + "\n") * rows)
        for new in (SHORT, LONG):
            begin = time.perf_counter()
            process = subprocess.Popen([a.tessera, "generate", "--model", a.model, "--dtype", dtype, "--input_file", prompts, "--batch_size", str(rows),
                                        "--max_new_tokens", str(new), "--min_new_tokens", str(new), "--do_sample", "false"], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            seconds[new] = time.perf_counter() - begin
            if status != 0:
                sys.exit(f"tessera generate failed (status {status})")
            peak = max(peak, usage.ru_maxrss / 1024)
    return 1e3 * (seconds[LONG] - seconds[SHORT]) / (LONG - SHORT), peak


def theirs(a: argparse.Namespace, dtype: str, rows: int) -> tuple[float, float]:
    said = subprocess.run([a.peer, "-c", PEER, a.model, dtype, str(rows), str(SHORT), str(LONG)], input=PROMPT + "\n", capture_output=True, text=True, check=True)
    milliseconds, peak = said.stdout.split()[-2:]
    return float(milliseconds), float(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tessera", default="build/release/tessera")
    parser.add_argument("--peer", default="", help="Python with torch and transformers; none: without a comparison")
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--dtypes", default="float32,bfloat16")
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
            best = min(mine)
            line = f"| {dtype} | {rows} | {best[0]:.1f} | {best[1]:.0f} |"
            if a.peer:
                least = min(other)
                line += f" {least[0]:.1f} | {least[1]:.0f} | {least[0] / best[0]:.2f} |"
            print(line, flush=True)


if __name__ == "__main__":
    main()
