#!/usr/bin/env python3
"""A training step of every PEFT method beside LoRA of rank 8 on all linear layers of the same model, and beside peft under torch FSDP2.

    bench/e2e/peft_methods.py MODEL_FOLDER PYTHON [--precision bf16] [--steps 8] [--rounds 2] [--no_peer] [METHOD ...]

MODEL_FOLDER: of `tessera init-model bench/e2e/llama_120m FOLDER`. PYTHON: one with bench/peers/requirements.txt; it makes the adapters that both
sides start from, and is the peer. Two ranks of one thread, two rows of 256 tokens each. The ratio beside LoRA is of processor time of a rank, of runs
that follow each other, so that other programs disturb it less; the one beside peft is of the clock. `held` and `formula` are as in
memory.sh, in a run of its own. A peer that does not run gives its last line of output below the table. Prints a Markdown table.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ALL = {"target_modules": LINEAR}
METHODS = {
    "LoRA r8": {"peft_type": "LORA", "r": 8, "lora_alpha": 16, **ALL},
    "DoRA r8": {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_dora": True, **ALL},
    "IA3": {"peft_type": "IA3", "target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "LN tuning": {"peft_type": "LN_TUNING", "target_modules": ["input_layernorm", "post_attention_layernorm", "norm"]},
    "prompt tuning": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8},
    "P-tuning": {"peft_type": "P_TUNING", "num_virtual_tokens": 8, "encoder_hidden_size": 128},
    "prefix tuning": {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 8},
    "trainable tokens": {"peft_type": "TRAINABLE_TOKENS", "token_indices": list(range(100)), "target_modules": ["embed_tokens"]},
    "AdaLoRA": {"peft_type": "ADALORA", "init_r": 8, "target_r": 4, "total_step": 1000, "tinit": 10, "tfinal": 10, "lora_alpha": 16, **ALL},
    "LoHa r8": {"peft_type": "LOHA", "r": 8, "alpha": 8, **ALL},
    "LoKr r8": {"peft_type": "LOKR", "r": 8, "alpha": 8, **ALL},
    "VeRA r256": {"peft_type": "VERA", "r": 256, **ALL},
    "VB-LoRA": {"peft_type": "VBLORA", "r": 4, "num_vectors": 256, "vector_length": 64, **ALL},
    "RandLoRA r32": {"peft_type": "RANDLORA", "r": 32, **ALL},
    "FourierFT": {"peft_type": "FOURIERFT", "n_frequency": 1000, **ALL},
    "MiSS r64": {"peft_type": "MISS", "r": 64, **ALL},
    "HRA r8": {"peft_type": "HRA", "r": 8, **ALL},
    "OFT block 32": {"peft_type": "OFT", "oft_block_size": 32, **ALL},
    "RoAd": {"peft_type": "ROAD", "group_size": 64, **ALL},
    "SHiRA r8": {"peft_type": "SHIRA", "r": 8, **ALL},
    "WaveFT": {"peft_type": "WAVEFT", "n_frequency": 2592, **ALL},
    "BOFT block 4": {"peft_type": "BOFT", "boft_block_size": 4, **ALL},
    "DeLoRA r8": {"peft_type": "DELORA", "r": 8, **ALL},
    "GraLoRA r8 k2": {"peft_type": "GRALORA", "r": 8, "gralora_k": 2, "alpha": 16, **ALL},
    "HiRA r8": {"peft_type": "HIRA", "r": 8, **ALL},
    "PVeRA r64": {"peft_type": "PVERA", "r": 64, **ALL},
    "Uni-LoRA r8": {"peft_type": "UNILORA", "r": 8, "theta_d_length": 4096, **ALL},
    "PSOFT r64": {"peft_type": "PSOFT", "r": 64, **ALL},
    "BEFT": {"peft_type": "BEFT", **ALL},
    "C3A block 256": {"peft_type": "C3A", "block_size": 256, **ALL},
}
HERE = Path(__file__).resolve().parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Failed(Exception):
    pass


def run(command: list) -> None:
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if "Error" in line or "error" in line]
        raise Failed(said[0].strip() if said else f"exit code {done.returncode}")


def lines_of(command: list, out: Path) -> list:
    out.unlink(missing_ok=True)
    run([*command, "--out", out])
    return [json.loads(line) for line in out.read_text().splitlines()]


def median(lines: list, key: str) -> float:
    return statistics.median(1e3 * line[key] for line in lines[2:] if key in line)


class Measured:
    def __init__(self, args, work: Path):
        self.args, self.work, self.failures = args, work, []
        self.tokens, self.out = work / "tokens.safetensors", work / "metrics.jsonl"
        self.peer = [HERE.parent / "peers/causal_lm.py"]

    def adapter(self, name: str) -> Path:
        folder = self.work / name.replace(" ", "_")
        if not folder.exists():
            config = {"task_type": "CAUSAL_LM", **METHODS[name]}
            run([self.args.python, *self.peer, "prepare", "--model", self.args.model, "--tokens", self.tokens, "--adapter", folder, "--peft", json.dumps(config)])
        return folder

    def ours(self, name: str, *flags) -> list:
        program = self.args.tessera
        return lines_of([program, "launch", "--use_cpu", "--num_processes", 2, "--num_cpu_threads_per_process", 1, program.parent / "bench/train_bench",
                         "--model", self.args.model, "--tokens", self.tokens, "--adapter", self.adapter(name), "--precision", self.args.precision,
                         "--steps", self.args.steps, *flags], self.out)

    def theirs(self, name: str) -> float | None:
        try:
            return median(lines_of([self.args.python.parent / "torchrun", "--nproc_per_node", 2, *self.peer, "train", "--api", "fsdp2", "--model",
                                    self.args.model, "--tokens", self.tokens, "--adapter", self.adapter(name), "--precision", self.args.precision,
                                    "--steps", self.args.steps], self.out), "step_seconds")
        except Failed as e:
            self.failures.append(f"- peft under FSDP2, {name}: {e}")
            return None

    def row(self, name: str) -> list:
        ratios, clock = [], []
        for _ in range(self.args.rounds):
            mine, lora = self.ours(name), self.ours("LoRA r8")
            ratios.append(median(mine, "cpu_seconds") / median(lora, "cpu_seconds"))
            clock.append(median(mine, "step_seconds"))
        peer = None if self.args.no_peer else self.theirs(name)
        held = next(line for line in self.ours(name, "--memory", "--batch", 1) if "held_mib" in line)
        return [name, f"{min(clock):.0f}", f"{min(ratios):.2f}", *([f"{peer:.0f}", f"{peer / min(clock):.2f}"] if peer else ["", ""]),
                f"{held['formula_mib']:.0f}", f"{held['held_mib']:.0f}", f"{held['held_mib'] / held['formula_mib']:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("python", type=Path)
    parser.add_argument("--tessera", type=Path, default=HERE.parents[1] / "build/release/tessera")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no_peer", action="store_true")
    parser.add_argument("--work", type=Path, help="a folder that keeps tokens and adapters")
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="of: " + ", ".join(METHODS))
    args = parser.parse_intermixed_args()
    unknown = [method for method in args.methods if method not in METHODS]
    if unknown:
        parser.error(f"unknown method {unknown[0]!r}; expected one of {', '.join(METHODS)}")
    if args.steps < 3:
        parser.error("--steps: at least 3, for the first two are not counted")
    args.tessera = args.tessera.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        measured = Measured(args, work)
        print("| method | step ms | processor time, of LoRA r8 | peft under FSDP2 ms | times its speed | formula MiB | held MiB | held / formula |\n|" + "---|" * 8)
        for method in args.methods or METHODS:
            try:
                print("| " + " | ".join(measured.row(method)) + " |", flush=True)
            except Failed as e:
                measured.failures.append(f"- {method}: {e}")
        print("\n".join(["", *measured.failures]) if measured.failures else "")


if __name__ == "__main__":
    sys.exit(main())
