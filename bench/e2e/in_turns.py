#!/usr/bin/env python3
"""Runs the same job in turns under several stacks, two ranks of one thread each, and compares time and memory.

    in_turns.py --steps 20 --rounds 3 --out results.jsonl --run 'NAME=COMMAND ... {steps} ... {metrics}' --run ...

A command is split as a shell would; {metrics} is replaced by the name of a fresh file, {steps} by --steps. Into that file the
command writes a JSON line a step, with "loss", "step_seconds" and "time" (Unix time at the step's end): tessera's metrics file
with --logging_steps 1, train_bench's, and bench/peers. t5_small.sh and causal_lm.sh have the commands. Tokens per second count the input tokens of all
ranks: --rows times --rows_tokens a step.

Memory is taken in the same way from every stack: a sampler looks every --interval seconds at /proc/<pid>/smaps_rollup of every
process below the command that was started, and keeps the highest Rss and Pss of each. The ranks are the --ranks processes
with the highest Pss (a launcher is smaller). The time to the first step counts from the start of the command. Linux only.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import step_profile


def children_of(parents: set[int]) -> set[int]:
    """All processes below the given ones, by the parents that /proc names."""
    parent_of = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parent_of[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
    found = set(parents)
    while True:
        more = {pid for pid, parent in parent_of.items() if parent in found} - found
        if not more:
            return found
        found |= more


class MemorySampler(threading.Thread):
    """Highest Rss and Pss in MiB of every process below `root`, until stop()."""

    def __init__(self, root: int, interval: float):
        super().__init__(daemon=True)
        self.root, self.interval, self.done = root, interval, threading.Event()
        self.peak: dict[int, dict[str, float]] = {}

    def run(self):
        while not self.done.wait(self.interval):
            for pid in children_of({self.root}):
                try:
                    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                except OSError:
                    continue  # it ended meanwhile
                best = self.peak.setdefault(pid, {"Rss": 0.0, "Pss": 0.0})
                for line in text.splitlines():
                    name, _, value = line.partition(":")
                    if name in best:
                        best[name] = max(best[name], int(value.split()[0]) / 1024)

    def stop(self):
        self.done.set()
        self.join()


def read_metrics(path: Path, warmup: int, begin: float) -> dict:
    """Median step time in ms, seconds from `begin` (Unix time) to the end of the first step, and the first losses."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    steps = [line for line in lines if "step_seconds" in line]
    if not steps:
        return {}
    times = [line["step_seconds"] * 1e3 for line in steps[warmup:] or steps]
    rate = {key: line[key] for line in lines for key in ("gemm_gflops",) if key in line}
    if "cpu_seconds" in steps[0]:
        rate["cpu_ms"] = round(statistics.median(line["cpu_seconds"] * 1e3 for line in steps[warmup:] or steps), 2)
    return {**rate, "step_ms": round(statistics.median(times), 2), "first_step_s": round(steps[0]["time"] - begin, 2),
            "losses": [round(line["loss"], 6) for line in steps[:10]]}


def profile_once(name: str, command: str, args) -> dict:
    """Where the time of a step goes, in a run of its own; {} where perf is not to be had."""
    if not step_profile.available():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        metrics, samples = Path(folder) / "metrics.jsonl", Path(folder) / "samples"
        argv = shlex.split(command.replace("{metrics}", str(metrics)).replace("{steps}", str(args.steps)))
        subprocess.run([*step_profile.recording(samples), *argv], stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=args.timeout)
        ends = [line["time"] for line in map(json.loads, metrics.read_text().splitlines()) if "step_seconds" in line]
        steps = len(ends) - args.warmup
        return {"name": name, "profile_ms": step_profile.milliseconds_by_class(samples, ends[args.warmup - 1], ends[-1], steps, args.ranks)}


def run_once(name: str, command: str, args) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        argv = shlex.split(command.replace("{metrics}", str(metrics)).replace("{steps}", str(args.steps)))
        log = open(Path(folder) / "log", "w+")
        begin, started = time.perf_counter(), time.time()
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        sampler = MemorySampler(process.pid, args.interval)
        sampler.start()
        try:
            code = process.wait(timeout=args.timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            code = process.wait()
        sampler.stop()
        ranks = sorted(sampler.peak.values(), key=lambda peak: -peak["Pss"])[: args.ranks]
        result = {"name": name, "time": started, "wall_s": round(time.perf_counter() - begin, 2), "exit": code,
                  "rss_mib": [round(r["Rss"]) for r in ranks], "pss_mib": [round(r["Pss"]) for r in ranks],
                  **read_metrics(metrics, args.warmup, started)}
        if "step_ms" in result:
            result["tokens_per_s"] = round(args.rows * args.rows_tokens / result["step_ms"] * 1e3)
        else:
            log.seek(0)
            print(f"{name}: no step times (exit code {code}); its last words:\n{log.read()[-2000:]}", file=sys.stderr)
        log.close()
        return result


def table(results: list[dict]) -> str:
    names = list(dict.fromkeys(result["name"] for result in results))
    lines = ["| run | step ms (median of rounds; min-max) | tokens/s | first step s | peak RSS MiB | peak PSS MiB |", "|---|---|---|---|---|---|"]
    for name in names:
        good = [r for r in results if r["name"] == name and "step_ms" in r]
        if not good:
            lines.append(f"| {name} | failed | | | | |")
            continue
        times = [r["step_ms"] for r in good]
        first = [r["first_step_s"] for r in good if r.get("first_step_s") is not None]
        highest = {key: "/".join(str(max(values)) for values in zip(*(r[key] for r in good))) for key in ("rss_mib", "pss_mib")}
        lines.append(f"| {name} | {statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f}) | "
                     f"{statistics.median(r['tokens_per_s'] for r in good):.0f} | {f'{statistics.median(first):.2f}' if first else '-'} | "
                     f"{highest['rss_mib']} | {highest['pss_mib']} |")
    return "\n".join(lines)


def largest_loss_difference(results: list[dict]) -> float:
    """Relative, step by step, of every run to the first one."""
    curves = [r["losses"] for r in results if "losses" in r]
    return max((abs(a - b) / abs(a) for curve in curves for a, b in zip(curves[0], curve)), default=0.0)


def ratios(results: list[dict], rounds: int) -> str:
    """The first contender against the best of the others, round by round."""
    per_round = [results[i * len(results) // rounds : (i + 1) * len(results) // rounds] for i in range(rounds)]
    lines = []
    for key, better in (("step_ms", "times the speed"), ("pss_mib", "of the proportional memory"), ("first_step_s", "of the time to the first step")):
        values = []
        for runs in per_round:
            if len(runs) < 2 or any(key not in r for r in runs):
                continue
            mine, *others = [max(r[key]) if isinstance(r[key], list) else r[key] for r in runs]
            values.append(min(others) / mine if key == "step_ms" else mine / min(others))
        if values:
            lines.append(f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}) {better}")
    return "Against the best of the others: " + "; ".join(lines) if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender has its turn")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=2, help="steps left out of the median")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16, help="rows of all ranks in one step")
    parser.add_argument("--rows_tokens", type=int, default=64, help="tokens of one row")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two looks at the memory; each takes tens of milliseconds of a core from a Python rank")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--profile", action="store_true", help="one more run of the first contender under perf says where its time goes")
    parser.add_argument("--check_losses", type=float, help="fails when losses differ by more, relatively")
    parser.add_argument("--out", help="appends one JSON line for each run")
    args = parser.parse_args()

    results = []

    def keep(result: dict):
        print(json.dumps(result), flush=True)
        if args.out:
            with open(args.out, "a") as f:
                f.write(json.dumps(result) + "\n")

    for _ in range(args.rounds):
        for run in args.run:
            name, _, command = run.partition("=")
            results.append(run_once(name, command, args))
            keep(results[-1])
    if args.profile:
        name, _, command = args.run[0].partition("=")
        keep(profile_once(name, command, args))
    print("\n" + table(results) + "\n\n" + ratios(results, args.rounds))
    if args.check_losses is not None:
        difference = largest_loss_difference(results)
        print(f"largest relative difference of losses: {difference:.1e}")
        if difference > args.check_losses:
            return 1
    return 0 if all("step_ms" in result for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
