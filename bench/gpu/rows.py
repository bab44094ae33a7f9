"""The rows of bench/gpu/run.sh: each a JSON line with "row", "status" (ok, failed, timed out, cannot run, left out) and what it found."""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 540  # seconds of a whole run
PEAK_TFLOPS = 989  # of an H100 in bf16, dense

DEVICE_FACTS = """
import json, torch
p = torch.cuda.get_device_properties(0)
print(json.dumps({"gpu": p.name, "gpus": torch.cuda.device_count(), "memory_gib": round(p.total_memory / 2**30, 1),
                  "capability": f"sm_{p.major}{p.minor}", "torch": torch.__version__, "cuda": torch.version.cuda,
                  "cudnn": torch.backends.cudnn.version(), "nccl": list(torch.cuda.nccl.version())}))
"""
CEILINGS = """
import json, time, torch
def seconds(run, n=20):
    for _ in range(3): run()
    torch.cuda.synchronize(); begin = time.perf_counter()
    for _ in range(n): run()
    torch.cuda.synchronize(); return (time.perf_counter() - begin) / n
a = torch.empty(2**30, dtype=torch.uint8, device="cuda"); b = torch.empty_like(a)
h = torch.empty(2**28, dtype=torch.uint8, pin_memory=True); d = a[:2**28]
out = {"copy_gb_s": 2 * a.numel() / seconds(lambda: b.copy_(a)) / 1e9,
       "to_device_gb_s": h.numel() / seconds(lambda: d.copy_(h, non_blocking=True)) / 1e9,
       "to_host_gb_s": h.numel() / seconds(lambda: h.copy_(d, non_blocking=True)) / 1e9}
for n in (2048, 4096, 8192):
    x = torch.randn(n, n, device="cuda", dtype=torch.bfloat16); y = torch.randn_like(x)
    out[f"gemm_bf16_{n}_tflops"] = 2 * n**3 / seconds(lambda: x @ y) / 1e12
print(json.dumps({k: round(v, 1) for k, v in out.items()}))
"""


def llama(hidden, layers, heads, kv, ffn, vocab=128256):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn, "vocab_size": vocab,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
            "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16",
            "tie_word_embeddings": hidden <= 3072}


MODELS = {"tiny": llama(64, 2, 4, 2, 128, 512), "1b": llama(2048, 16, 32, 8, 8192), "3b": llama(3072, 28, 24, 8, 8192),
          "8b": llama(4096, 32, 32, 8, 14336)}

OFFLOADED = ["launch", "--use_fsdp", "--fsdp_offload_params", "true", "--num_processes", "1"]


class Rows:
    def __init__(self, options):
        self.dry, self.programs, self.out = options.dry, Path(options.programs), open(options.out, "w")
        self.end = time.monotonic() + LIMIT - 20
        self.device = "cpu" if self.dry else "cuda"
        self.work = tempfile.TemporaryDirectory(prefix="tessera_gpu_")
        commit = ROOT / ".gpu/commit"
        self.commit = (commit.read_text().strip() if commit.exists() and not self.dry else
                       subprocess.run(["git", "describe", "--always", "--abbrev=12", "--dirty"], cwd=ROOT, text=True,
                                      capture_output=True).stdout.strip() or "unknown")
        self.good, self.models = True, {}

    def write(self, row, status, **values):
        self.good = self.good and status in ("ok", "cannot run")
        line = {"row": row, "status": status, "dry": self.dry, "commit": self.commit, **values}
        print(json.dumps(line), file=self.out, flush=True)
        print(f"{status:10} {row} {values.get('why', '')}", flush=True)

    def command(self, words, limit):
        """Returns (status, output, seconds); kills all that the command started at its end."""
        environment = dict(os.environ)
        if "TESSERA_LIBRARIES" in environment and words[0] != sys.executable:
            environment["LD_LIBRARY_PATH"] = environment["TESSERA_LIBRARIES"]
        left = self.end - time.monotonic()
        if left < 5:
            return "left out", "no time was left", 0.0
        begin = time.monotonic()
        child = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                 cwd=ROOT, env=environment, start_new_session=True)
        try:
            output, _ = child.communicate(timeout=min(limit, left))
            status = "ok" if child.returncode == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            status = "timed out"
        return status, output, round(time.monotonic() - begin, 2)

    def run(self, row, words, limit, read=lambda output: {}):
        """`read` takes values out of the output of a command that went well; it may throw."""
        status, output, seconds = self.command(words, limit)
        values = {"seconds": seconds}
        if status == "ok":
            try:
                values.update(read(output))
            except (AssertionError, KeyError, ValueError, IndexError) as e:
                status, values["why"] = "failed", f"{type(e).__name__}: {e}"
        if status != "ok":
            values.setdefault("why", output[-600:].strip())
        self.write(row, status, **values)
        return values if status == "ok" else None

    def python(self, row, text, limit):
        if self.dry:
            return self.write(row, "cannot run", why="of the GPU alone: a dry run has none")
        return self.run(row, [sys.executable, "-c", text], limit, lambda output: json.loads(output.splitlines()[-1]))

    def model(self, name):
        """The folder of a model with random weights, or None with the reason in a row."""
        if name not in self.models:
            config, folder, dtype = Path(self.work.name) / f"{name}_config", Path(self.work.name) / name, "bfloat16"
            if name == "tiny_chat":
                config, dtype = ROOT / "tests/data/tiny_chat", "float32"
            else:
                config.mkdir()
                (config / "config.json").write_text(json.dumps(MODELS[name]))
            made = self.run(f"make {name}", [self.programs / "tessera", "init-model", config, folder, "--dtype", dtype], 200)
            self.models[name] = folder if made is not None else None
        return self.models[name]

    def train(self, row, model, flags, limit, read):
        folder = self.model(model)
        if folder is None:
            return self.write(row, "left out", why=f"the model {model} was not made")
        bench = self.programs / "train_bench"
        if not bench.exists():
            bench = self.programs / "bench/train_bench"
        if not bench.exists():
            return self.write(row, "cannot run", why="train_bench was not built")
        metrics = Path(self.work.name) / f"{row.replace(' ', '_')}.jsonl"
        return self.run(row, [bench, "--model", folder, "--out", metrics, *flags], limit,
                        lambda _: read([json.loads(line) for line in metrics.read_text().splitlines()]))


def programs_start(rows):
    """On the CPU: libtorch and the C library of this machine are such that the programs work at all."""
    rows.run("programs start", [rows.programs / "tessera", "verify", ROOT / "tests/data/goldens/A_models/gpt2", "--device", "cpu"], 60)


def verify(rows, family, names, flags=(), form="resident"):
    for name in names:
        folder = ROOT / "tests/data/goldens" / family / name
        words = [rows.programs / "tessera", *flags, "verify", folder, "--sharded", "--device", rows.device]
        rows.run(f"verify {form} {family}/{name}", words, 60,
                 lambda output: {"verified": output.splitlines()[-1].startswith("verified") or 1 / 0})


def losses(lines):
    return [line["loss"] for line in lines if "loss" in line]


def close(mine, other, tolerance):
    assert len(mine) == len(other) and all(math.isfinite(x) for x in mine), f"{mine} beside {other}"
    worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(mine, other))
    assert worst <= tolerance, f"losses differ by {worst:.1e}, more than {tolerance}: {mine} beside the CPU's {other}"
    return worst


def same_losses(rows, row, flags, tolerance):
    """`tessera sft` on the CPU, and on the device in both forms: resident (stopped in the middle and resumed), and offloaded."""
    model = rows.model("tiny_chat")
    found = {}

    def folder(name):
        return Path(rows.work.name) / f"{name} {row}".replace(" ", "_")

    def sft(name, launch, more, check, steps=6):
        out = folder("resident" if name == "resumed" else name)

        def read(_):
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            mine = [line["train_loss_exact"] for line in lines if "train_loss_exact" in line][-steps:]
            assert len(mine) == steps, f"expected {steps} steps, found {mine}"
            return {"losses": mine, **check(mine)}

        words = [rows.programs / "tessera", *launch, "sft", "--model_name_or_path", model, "--dataset_name", ROOT / "tests/data/tiny_chat",
                 "--dataset_cache_dir", Path(rows.work.name) / "cache", "--output_dir", out, "--logging_steps", "1", "--disable_tqdm",
                 "--max_seq_length", "128", "--seed", "7", "--learning_rate", "1e-2", "--max_steps", "6", "--print_model", "false", *flags]
        rows.run(f"sft {name} {row}", [*words, *more], 90, read)

    if model is None:
        return rows.write(f"sft {row}", "left out", why="the model was not made")
    beside = lambda mine: {"worst": close(mine, found["cpu"][-len(mine):], tolerance)}
    sft("cpu", [], ["--device", "cpu", "--save_strategy", "no"], lambda mine: found.update(cpu=mine) or {})
    if "cpu" not in found:
        return rows.write(f"sft on the device {row}", "left out", why="there is nothing to compare with")
    sft("resident", [], ["--device", rows.device, "--save_steps", "3"], beside)
    sft("resumed", [], ["--device", rows.device, "--resume_from_checkpoint", folder("resident") / "checkpoint-3", "--save_strategy", "no"],
        beside, steps=3)
    sft("offloaded", OFFLOADED, ["--device", rows.device, "--save_strategy", "no"], beside)


def run_tests(rows):
    programs_start(rows)
    rows.python("ceilings", CEILINGS, 60)
    small = ["gpt2", "llama_gqa_rope3"] if rows.dry else sorted(p.name for p in (ROOT / "tests/data/goldens/A_models").iterdir()
                                                                  if (p / "expect.json").exists() and p.name != "logits_processors")
    runs = ["llama_dora", "t5_full"] if rows.dry else ["bert_lora_cls", "gpt2_lora", "hf_trainer", "llama_dora", "llama_lora_embed", "t5_full",
                                                      "t5_layers_patterns", "t5_lora_qv", "t5u_dora_save_head"]
    lora = ["--use_peft_lora", "--lora_r", "4", "--lora_target_modules", "all-linear", "--lora_dropout", "0.1"]
    settings = [("full fp32", [], 1e-4), ("NF4 LoRA bf16", ["--bf16", "--use_4bit_quantization", *lora], 3e-2),
                ("full bf16", ["--bf16"], 3e-2), ("LoRA bf16 recomputation", ["--bf16", "--gradient_checkpointing", *lora], 3e-2)]
    for row, flags, tolerance in settings[:2] if rows.dry else settings:
        same_losses(rows, row, flags, tolerance)
    verify(rows, "B_train", runs)
    verify(rows, "A_models", small)
    verify(rows, "B_train", runs[:1] if rows.dry else ["llama_dora", "t5_full", "gpt2_lora"], OFFLOADED, "offloaded")
    for row, why in (("compute-sanitizer", "no kernels of our own yet"), ("kernels", "no kernels of our own yet"),
                     ("NCCL", "several GPUs exchange nothing yet")):
        rows.write(row, "cannot run", why=why)


def speed(rows, tokens, gflop):
    def read(lines):
        seconds = sorted(line["step_seconds"] for line in lines if "step_seconds" in line)[: max(1, len(lines) // 2)]
        rate = tokens / seconds[len(seconds) // 2]
        peak = next((line["peak_device_gb"] for line in lines if "peak_device_gb" in line), None)
        return {"tokens_s": round(rate, 1), "share_of_peak": round(rate * gflop / 1e3 / PEAK_TFLOPS, 4), "peak_gb": peak,
                "losses": losses(lines)}

    return read


# Row of docs/benchmarks.md, model, rows of a batch, GFLOP a token, flags; 2048 tokens a row.
BENCH = [("1 1B LoRA", "1b", 8, 5.5, ["--lora_r", "16"]),
         ("2 1B full", "1b", 8, 7.9, []),
         ("4 8B LoRA", "8b", 4, 32.1, ["--lora_r", "16"]),
         ("5 8B LoRA recomputation", "8b", 4, 46.7, ["--lora_r", "16", "--activation_checkpointing"]),
         ("6 8B NF4 recomputation", "8b", 4, 46.7, ["--lora_r", "16", "--load_in_4bit", "--activation_checkpointing"]),
         ("3 3B full", "3b", 4, 20.5, [])]


def run_bench(rows):
    programs_start(rows)
    rows.python("ceilings", CEILINGS, 60)
    for row, model, batch, gflop, flags in BENCH[:1] if rows.dry else BENCH:
        length = 64 if rows.dry else 2048
        rows.train(row, "tiny" if rows.dry else model,
                   ["--precision", "bf16", "--batch", batch, "--length", length, "--steps", "6", "--clip", "1", "--device", rows.device, *flags],
                   100, speed(rows, batch * length, gflop))
    for row, why in (("7 70B NF4", "140 GB of random weights do not fit on this disk, and packed bases have no kernels on GPUs"),
                     ("8 8B full, optimizer on the CPU", "gradients and the optimizer do not overlap with backward yet"),
                     ("peers", "transformers and PEFT are not carried yet")):
        rows.write(row, "cannot run", why=why)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["tests", "bench"])
    parser.add_argument("--programs", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--dry", action="store_true")
    rows = Rows(parser.parse_args())
    if not rows.dry and rows.python("machine", DEVICE_FACTS, 60) is None:
        print("run.sh: torch finds no GPU (see the row 'machine'); look at nvidia-smi and CUDA_VISIBLE_DEVICES", file=sys.stderr)
        return 3
    (run_tests if sys.argv[1] == "tests" else run_bench)(rows)
    return 0 if rows.good else 1


sys.exit(main())
