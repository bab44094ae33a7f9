#!/usr/bin/env python3
"""Runs every comparison of speed and writes the measured part of docs/benchmarks.md: one command.

    bench/e2e/report.py --python VENV/bin/python --models FOLDER --sentences FILE --results FOLDER --write docs/benchmarks.md

VENV has bench/peers/requirements.txt; FOLDER/llama-20m and llama-120m come from `tessera init-model bench/e2e/llama_20m FOLDER/llama-20m`,
smollm2-135m and t5-small are folders of those models; FILE has lines `sentence@label`. The build has tessera, tessera-worker, train_bench
and comm_bench (-DTESSERA_BENCH=ON). Round by round, the most important jobs first, contenders in turns; every line is kept in --results and
the document is written anew after each job, so it can be stopped at any time; called again, it runs what is missing. Leave the
machine alone meanwhile. --rounds 0 only writes.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import in_turns
import step_profile

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build/release"
SCALING = "scaling"
EAGER = ("fsdp1", "fsdp2", "trl", "none")
Job = namedtuple("Job", "title model kind precision seq batch ranks peers more speed share", defaults=(256, 2, 2, ("fsdp1", "fsdp2"), "", None, None))


def jobs() -> list[Job]:
    """In the order of their importance. speed: bar for times the speed of the better peer; share: of the GEMM rate."""
    bars = {("lora", "bf16"): (3.0, 0.40), ("full", "bf16"): (2.3, 0.35), ("lora", "fp32"): (1.8, 0.65), ("full", "fp32"): (1.8, 0.70)}
    def causal(model, kind, precision, what="", bar=None, **rest):
        return Job(f"{model}, {'LoRA' if kind == 'lora' else 'all weights'}, {precision}{what}", model, kind, precision,
                   **rest, **dict(zip(("speed", "share"), bar or (None, None))))
    large = ("llama-120m", "smollm2-135m")
    found = [causal(m, *key, bar=bars[key]) for key in bars for m in large]
    found[1:1] = [causal("llama-120m", "lora", "bf16", ", 1024 tokens", bars["lora", "bf16"], seq=1024, batch=1)]
    found += [Job("t5-small, LoRA, fp32", "t5-small", "t5-lora", "fp32", 64, 8, speed=2.0), causal("llama-20m", "full", "fp32", bar=(2.0, None)),
              *(Job(f"`tessera sft` beside TRL, llama-120m, LoRA, {precision}", "llama-120m", "sft", precision, peers=("trl",)) for precision in ("fp32", "bf16"))]
    found += [causal(m, "lora", "bf16", ", beside torch.compile", (1.8, None), peers=("fsdp2_compile",)) for m in large]
    found += [causal(m, kind, "bf16", ", 1024 tokens", bars[kind, "bf16"], seq=1024, batch=1) for kind in ("full", "lora") for m in large
              if (m, kind) != ("llama-120m", "lora")]
    found += [causal("llama-120m", *key, ", one rank beside one process without FSDP", ranks=1, peers=("none",)) for key in bars]
    found += [causal("llama-120m", kind, "bf16", ", activation checkpointing", more="--activation_checkpointing") for kind in ("lora", "full")]
    found += [causal("llama-120m", *key, ", beside torch.compile", (1.3, None), peers=("fsdp2_compile",)) for key in list(bars)[1:]]
    found += [Job("t5-small, all weights, fp32", "t5-small", "t5-full", "fp32", 64, 8)]
    alone = {"peers": (), "kind": "lora", "precision": "bf16", "model": "llama-120m"}
    shapes = [{}] + [{"seq": s, "batch": 1} for s in (128, 256, 512, 1024, 2048)] + [{"batch": b} for b in (1, 2, 4, 8)] + [{"ranks": r} for r in (1, 2, 4)]
    shapes += [{"model": m} for m in ("llama-20m", "smollm2-135m")] + [{"ranks": r, "kind": "full", "precision": "fp32"} for r in (2, 1, 4)]
    for shape in shapes:
        found.append(Job(title=SCALING, **{**alone, **shape}))
    return list(dict.fromkeys(found))


def file_of(job: Job, folder: Path) -> Path:
    name = f"{job.model} {job.kind} {job.precision} {job.seq} {job.batch} {job.ranks} {' '.join(job.peers)} {job.more}"
    return folder / (re.sub(r"\W+", "-", name).strip("-") + ".jsonl")


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rounds_of(job: Job, folder: Path) -> list[dict[str, dict]]:
    """Runs by contender, of the complete rounds: each begins with tessera's run, and a contender without steps spoils it."""
    rounds, names = [{}], {"tessera", *job.peers}
    for line in lines_of(file_of(job, folder)):
        if line.get("name") == "tessera" and "wall_s" in line:
            rounds.append({})
        if "step_ms" in line:
            rounds[-1][line["name"]] = line
    return [turn for turn in rounds if turn.keys() == names]


def run_job(job: Job, args, options: list[str]) -> None:
    path = file_of(job, args.results)
    work = args.results / f"prepared-{job.model}-{job.kind}-{job.seq}"
    work.mkdir(exist_ok=True)
    env = {**os.environ, "SEQ": str(job.seq), "BATCH": str(job.batch), "RANKS": str(job.ranks), "PEERS": " ".join(job.peers), "MORE": job.more, "WORK": str(work)}
    command = [HERE / "causal_lm.sh", args.models / job.model, args.python, job.kind, job.precision]
    if job.kind.startswith("t5"):
        command = [HERE / "t5_small.sh", args.models / job.model, args.sentences, args.python, job.kind[3:]]
    if job.kind == "sft":
        command = [HERE / "sft.sh", args.models / job.model, HERE.parents[1] / "examples/demo/chats", args.python, job.precision]
    timeout = "1500" if "fsdp2_compile" in job.peers else "600"
    subprocess.run([*map(str, command), "--steps", str(args.steps), "--timeout", timeout, "--out", str(path), *options], env=env, stdout=sys.stderr)


def run_collectives(args) -> None:
    path = args.results / "collectives.jsonl"
    subprocess.run([BUILD / "tessera", "launch", "--use_cpu", "--num_processes", "2", BUILD / "bench/comm_bench", "--out", path], stdout=sys.stderr)
    subprocess.run([args.python.with_name("torchrun"), "--nproc_per_node", "2", HERE.parent / "peers/collectives.py", "--out", path],
                   stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
    with open(path, "a") as f:
        f.write(json.dumps({"round": time.time()}) + "\n")


def run_commands(args) -> None:
    tessera, accelerate = BUILD / "tessera", args.python.with_name("accelerate")
    pairs = {"--help": ([tessera, "--help"], [accelerate, "--help"]), "env": ([tessera, "env"], [accelerate, "env"]),
             "estimate": ([tessera, "estimate", args.models / "llama-120m"], [accelerate, "estimate-memory", "--help"])}
    with open(args.results / "commands.jsonl", "a") as f:
        for name, commands in pairs.items():
            seconds = []
            for command in commands:
                begin = time.perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
                seconds.append(time.perf_counter() - begin)
            f.write(json.dumps({"command": name, "tessera_s": seconds[0], "accelerate_s": seconds[1]}) + "\n")


def flops(job: Job, models: Path) -> float:
    """Of the model in one step of all ranks. No recomputation, half of the squares of attention, and the embedding's lookup is none."""
    c = json.loads((models / job.model / "config.json").read_text())
    h, wide, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    size = c.get("head_dim") or h // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    linear = layers * (2 * h * q + 2 * h * kv + 3 * h * wide)
    head = c["vocab_size"] * h
    adapter = layers * 8 * (2 * (h + q) + 2 * (h + kv) + 3 * (h + wide))
    weights = 6 * (linear + head) if job.kind == "full" else 4 * (linear + head) + 6 * adapter
    return job.ranks * job.batch * job.seq * (weights + 3 * layers * 2 * q * job.seq)


def share_of_gemm(job: Job, turn: dict, name: str, models: Path) -> float | None:
    rates = turn["tessera"].get("gemm_gflops")
    return rates and flops(job, models) / (turn[name]["step_ms"] * 1e6 * rates[job.precision] * job.ranks)


def spread(values, form="{:.2f}") -> str:
    values = [value for value in values if value is not None]
    if not values:
        return ""
    low, middle, high = (form.format(x) for x in (min(values), statistics.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def table(head: list[str], rows: list[list]) -> list[str]:
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)] + [""]


def comparison(done: dict[Job, list], models: Path) -> list[str]:
    bars, runs = [], []
    for job, turns in done.items():
        def best(turn, key):
            return min(max(turn[p][key]) if isinstance(turn[p][key], list) else turn[p][key] for p in job.peers)
        same_rows = not job.kind.startswith(("t5", "sft"))
        shares = [share_of_gemm(job, turn, "tessera", models) for turn in turns] if same_rows else []
        loss = max(in_turns.largest_loss_difference(list(turn.values())) for turn in turns) if same_rows else None
        bars.append([job.title, len(turns), spread(best(t, "step_ms") / t["tessera"]["step_ms"] for t in turns), f">= {job.speed}" if job.speed else "",
                     spread(shares), f">= {job.share:.2f}" if job.share else "", spread(max(t["tessera"]["pss_mib"]) / best(t, "pss_mib") for t in turns),
                     spread(t["tessera"]["first_step_s"] / best(t, "first_step_s") for t in turns), f"{loss:.0e}" if same_rows else ""])
        for name in ("tessera", *job.peers):
            share = spread((share_of_gemm(job, t, name, models) for t in turns), "{:.2f}") if same_rows else ""
            runs.append([job.title, name, spread((t[name]["step_ms"] for t in turns), "{:.0f}"), f"{statistics.median(t[name]['tokens_per_s'] for t in turns):.0f}", share,
                         max(max(t[name]["rss_mib"]) for t in turns), max(max(t[name]["pss_mib"]) for t in turns), spread((t[name]["first_step_s"] for t in turns), "{:.1f}")])
    return ["### Against the bars", "", *table(["job", "rounds", "times the speed of the better peer", "bar", "share of the GEMM rate", "bar", "PSS, of the smaller (bar 0.5)",
            "first step, of the sooner", "largest loss difference"], bars),
            "### Every contender", "", *table(["job", "contender", "step ms", "tokens/s", "share of the GEMM rate", "peak RSS MiB a rank", "peak PSS MiB a rank", "first step s"], runs)]


def where_time_goes(all_jobs: list[Job], folder: Path) -> list[str]:
    rows, names = [], step_profile.NAMES
    for job in all_jobs:
        for profile in [line["profile_ms"] for line in lines_of(file_of(job, folder)) if "profile_ms" in line][-1:]:
            rows.append([job.title, round(sum(profile.values())), *(profile.get(name, "") for name in names)])
    return ["### Where a step's time goes", "", *table(["job", "step ms", *names], rows)] if rows else []


def scaling(done: dict[Job, list], models: Path) -> list[str]:
    rows, base = [], {}
    for job, turns in done.items():
        ms, work = statistics.median(t["tessera"]["step_ms"] for t in turns), flops(job, models) / job.ranks
        cpu_ms = statistics.median(t["tessera"]["cpu_ms"] for t in turns)
        base.setdefault((job.kind, job.precision), cpu_ms / work)
        rows.append([f"{job.model}, {job.kind}, {job.precision}", job.ranks, job.seq, job.batch, f"{ms:.0f}", f"{cpu_ms:.0f}", f"{ms / (job.ranks * job.batch * job.seq) * 1e3:.0f}",
                     f"{work * 1e-9:.0f}", f"{cpu_ms / work / base[job.kind, job.precision]:.2f}"])
    return ["### Cost of a step", "", *table(["job", "ranks", "tokens of a row", "rows of a rank", "step ms", "of them on the processor", "ms for 1000 tokens", "GFLOP of a rank",
            "processor time for a FLOP, of the first row's"], rows)] if rows else []


def collectives(folder: Path) -> list[str]:
    lines = [line for line in lines_of(folder / "collectives.jsonl") if "op" in line]
    def times(name, op, dtype, mib):
        return [line["ms"] for line in lines if (line["name"], line["op"], line["dtype"], line["mib"]) == (name, op, dtype, mib)]
    rows = []
    for op, dtype, mib in dict.fromkeys((line["op"], line["dtype"], line["mib"]) for line in lines if line["name"] == "gloo"):
        ours, gloo, copy = (times(*key, dtype, mib) for key in (("tessera", op), ("gloo", op), ("tessera", "memcpy")))
        rows.append([op, dtype, mib, spread(ours), spread(gloo), spread(copy), spread(g / o for g, o in zip(gloo, ours)), spread(c / o for c, o in zip(copy, ours))])
    return ["### Collectives (copy form), two ranks", "", *table(["operation", "dtype", "MiB, full buffer", "ms", "gloo ms", "memcpy ms", "times gloo's speed (bar 5)", "of memcpy's bandwidth (bar 0.7)"],
            sorted(rows, key=lambda row: (row[0], row[1] != "fp32", row[2])))] if rows else []


def commands(folder: Path) -> list[str]:
    lines = lines_of(folder / "commands.jsonl")
    rows = []
    for name in dict.fromkeys(line["command"] for line in lines):
        each = [line for line in lines if line["command"] == name]
        rows.append([name, spread(line["tessera_s"] * 1e3 for line in each), spread((line["accelerate_s"] * 1e3 for line in each), "{:.0f}"),
                     spread((line["tessera_s"] / line["accelerate_s"] for line in each), "{:.4f}")])
    return ["### Start of a command", "", *table(["command", "tessera ms", "accelerate ms", "ratio (bar 0.02)"], rows)] if rows else []


def machine(python: Path, times: list[float]) -> str:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if re.search(rf"\b{flag}\b", Path("/proc/cpuinfo").read_text())]
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / 2**20
    torch = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True).stdout.strip()
    days = "/".join(sorted({time.strftime("%Y-%m-%d", time.gmtime(t)) for t in times}))
    return f"Measured {days} on {os.cpu_count()} cores, {cpu[1] if cpu else 'CPU'} ({', '.join(flags)}), {memory:.0f} GiB, torch {torch}. Medians of rounds (lowest-highest)."


def write(args, all_jobs: list[Job]) -> None:
    done = {job: turns for job in all_jobs if (turns := rounds_of(job, args.results))}
    times = [turn["tessera"]["time"] for turns in done.values() for turn in turns]
    text = "\n".join([machine(args.python, times), "", *comparison({j: t for j, t in done.items() if j.title != SCALING}, args.models), *where_time_goes(all_jobs, args.results),
                      *collectives(args.results), *commands(args.results), *scaling({j: t for j, t in done.items() if j.title == SCALING}, args.models)])
    if args.write:
        begin, end = "<!-- bench/e2e/report.py writes from here -->\n", "<!-- to here -->\n"
        before, _, rest = args.write.read_text().partition(begin)
        args.write.write_text(before + begin + "\n" + text + end + rest.partition(end)[2])
    else:
        print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="of a run; the first two are left out")
    parser.add_argument("--only", default=".", help="regular expression of the titles (or collectives, commands, scaling) to run")
    parser.add_argument("--write", type=Path, help="the document; without it the tables are printed")
    args = parser.parse_args()
    args.results = args.results.resolve()
    args.results.mkdir(parents=True, exist_ok=True)
    all_jobs = jobs()
    for number in range(1, args.rounds + 1):
        for name, run, lines in (("collectives", run_collectives, '"round"'), ("commands", run_commands, '"estimate"')):
            path = args.results / f"{name}.jsonl"
            if re.search(args.only, name) and (path.read_text().count(lines) if path.exists() else 0) < number:
                run(args)
        for job in all_jobs:
            if not re.search(args.only, job.title) or (job.title == SCALING and number > 2) or (job.kind.startswith("t5") and not args.sentences):
                continue
            if len(rounds_of(job, args.results)) < number:
                print(f"round {number}: {job.title}", file=sys.stderr)
                run_job(job, args, ["--rounds", "1", *(["--profile"] if number == 1 and job.title != SCALING else [])])
                write(args, all_jobs)
    write(args, all_jobs)


if __name__ == "__main__":
    main()
