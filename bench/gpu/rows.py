"""The rows of bench/gpu/run.sh: each a JSON line with "row", "status" (ok, failed, timed out, cannot run, left out) and what it found."""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = {"tests": 200, "bench": 540}  # seconds of a whole run; a dry one has the larger
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


def mixture(hidden, layers, heads, kv, ffn, experts, per_token, vocab):
    """Qwen3-MoE; ffn: of an expert."""
    return {**llama(hidden, layers, heads, kv, ffn, vocab), "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "head_dim": hidden // heads, "moe_intermediate_size": ffn, "num_experts": experts, "num_experts_per_tok": per_token,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


MODELS = {"tiny": llama(64, 2, 4, 2, 128, 512), "1b": llama(2048, 16, 32, 8, 8192), "3b": llama(3072, 28, 24, 8, 8192),
          "8b": llama(4096, 32, 32, 8, 14336), "mixture": mixture(2048, 4, 16, 4, 768, 128, 8, 32768),
          "tiny packed": llama(64, 2, 4, 2, 128, 512), "70b packed": llama(8192, 80, 64, 8, 28672, 32000)}
TINY_MIXTURE = {**mixture(48, 2, 4, 2, 32, 8, 2, 260), "bos_token_id": 256, "eos_token_id": 258, "initializer_range": 0.05}

THREADS = 2  # of a program that runs beside others
OFFLOADED = ["launch", "--use_fsdp", "--fsdp_offload_params", "true", "--num_processes", "1",
             "--num_cpu_threads_per_process", str(THREADS)]


def parameters(config):
    hidden, kv = config["hidden_size"], config["hidden_size"] // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = 2 * hidden * (hidden + kv) + 3 * hidden * config["intermediate_size"] * config.get("num_experts", 1) + 2 * hidden
    return config["num_hidden_layers"] * layer + (1 if config["tie_word_embeddings"] else 2) * config["vocab_size"] * hidden


def gigabytes(name):
    """Of a model's files: bfloat16, or NF4 with its statistics."""
    return parameters(MODELS[name]) * (0.53 if "packed" in name else 2) / 1e9


def fast_folder(gb):
    """Where `gb` of models are written and read fastest: memory, or else the disk of temporary files (None)."""
    memory = Path("/dev/shm")
    fits = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free / 1e9 > gb + 8
    return memory if fits else None


class CannotRun(Exception):
    pass


class Rows:
    def __init__(self, options):
        self.dry, self.programs, self.out = options.dry, Path(options.programs), open(options.out, "w")
        self.end = time.monotonic() + LIMIT["bench" if self.dry else options.part] - 10
        self.device = "cpu" if self.dry else "cuda"
        self.work = tempfile.TemporaryDirectory(prefix="tessera_gpu_")
        commit = ROOT / ".gpu/commit"
        self.commit = (commit.read_text().strip() if commit.exists() and not self.dry else
                       subprocess.run(["git", "describe", "--always", "--abbrev=12", "--dirty"], cwd=ROOT, text=True,
                                      capture_output=True).stdout.strip() or "unknown")
        self.only = options.only.split(",") if options.part == "bench" and options.only else [""]
        self.environment, self.ended, self.models = dict(os.environ), [], {}
        self.lock, self.children = threading.Lock(), set()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)

    def stop(self, number, _):
        self.end = 0
        for child in list(self.children):
            self.kill(child)
        raise SystemExit(128 + number)

    @staticmethod
    def kill(child):
        """With all that it started."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wanted(self, row):
        return row.startswith(tuple(self.only))

    def write(self, row, status, **values):
        line = {"row": row, "status": status, "dry": self.dry, "commit": self.commit, **values}
        with self.lock:
            self.ended.append(line)
            print(json.dumps(line), file=self.out, flush=True)
            print(f"{status:10} {row} {last_lines(line, 1)}", flush=True)

    def bad(self):
        return [line for line in self.ended if line["status"] not in ("ok", "cannot run")]

    def summary(self):
        count = lambda status: sum(line["status"] == status for line in self.ended)
        print(f"\n{count('ok')} ok, {count('cannot run')} cannot run, {len(self.bad())} not ok")
        for line in self.bad():
            print(f"{line['status']}: {line['row']}\n    {last_lines(line, 3)}".rstrip())

    def side_by_side(self, tasks, jobs):
        """Runs functions, `jobs` at a time; those that a function returns come before the ones that wait."""
        waiting, running = deque(tasks), set()
        with ThreadPoolExecutor(jobs) as pool:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.add(pool.submit(waiting.popleft()))
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for task in ended:
                    waiting.extendleft(reversed(task.result() or []))

    def command(self, words, limit):
        """Returns (status, output, seconds); kills all that the command started at its end."""
        environment = dict(self.environment)
        if "TESSERA_LIBRARIES" in environment and words[0] != sys.executable:
            environment["LD_LIBRARY_PATH"] = environment["TESSERA_LIBRARIES"]
        left = self.end - time.monotonic()
        if left < 5:
            return "left out", "no time was left", 0.0
        begin = time.monotonic()
        try:
            child = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     errors="replace", cwd=ROOT, env=environment, start_new_session=True)
        except OSError as e:
            return "failed", str(e), 0.0
        self.children.add(child)
        try:
            output, _ = child.communicate(timeout=min(limit, left))
            status = "ok" if child.returncode == 0 else "failed"
        except subprocess.TimeoutExpired:
            self.kill(child)
            output, _ = child.communicate()
            status = "timed out"
        self.children.remove(child)
        self.kill(child)
        return status, output, round(time.monotonic() - begin, 2)

    def run(self, row, words, limit, read=lambda output: {}, keep=lambda output: {}):
        """`read` takes values out of the output of a command that went well, and may throw; `keep` out of any."""
        status, output, seconds = self.command(words, limit)
        values = {"seconds": seconds, **keep(output)}
        if status == "ok":
            try:
                values.update(read(output))
            except CannotRun as e:
                status, values["why"] = "cannot run", str(e)
            except (AssertionError, ArithmeticError, KeyError, ValueError, IndexError, OSError) as e:
                status, values["why"] = "failed", f"{type(e).__name__}: {e}"
        if status != "ok":
            values.setdefault("why", output[-1500:].strip() or "it printed nothing")
        self.write(row, status, **values)
        return values if status == "ok" else None

    def python(self, row, text, limit):
        if self.dry:
            return self.write(row, "cannot run", why="of the GPU alone: a dry run has none")
        return self.run(row, [sys.executable, "-c", text], limit, lambda output: json.loads(output.splitlines()[-1]))

    def make(self, name, folder):
        """A model with random weights, unless `folder` has it from an earlier run; a row says where it fails."""
        made, part = folder / name.replace(" ", "_"), folder / "part"
        if not made.exists():
            shutil.rmtree(part, ignore_errors=True)
            if (self.packed(name, part) if "packed" in name else self.dense(name, part)) is None:
                shutil.rmtree(part, ignore_errors=True)
                return
            part.rename(made)
        self.models[name] = made

    def config(self, name):
        """A folder with the model's config.json."""
        folder = Path(self.work.name) / f"{name}_config"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(MODELS[name]))
        return folder

    def dense(self, name, folder):
        if name in MODELS:
            config, dtype = self.config(name), "bfloat16"
        else:
            config, dtype = Path(self.work.name) / f"{name}_config", "float32"
            shutil.copytree(ROOT / "tests/data/tiny_chat", config)
            if name == "tiny_mixture":
                (config / "config.json").write_text(json.dumps(TINY_MIXTURE))
        return self.run(f"make {name}", [self.programs / "tessera", "init-model", config, folder, "--dtype", dtype], 200)

    def packed(self, name, folder):
        """In NF4, doubly quantised."""
        work = Path(self.work.name)
        self.run("make a model for tables", [self.programs / "tessera", "init-model", self.config("tiny"), work / "small"], 60)
        self.run("make tables", [self.programs / "tessera", "quantize", work / "small", work / "tables", "--type", "nf4", "--double_quant"], 60)
        return self.run(f"make {name}", [sys.executable, ROOT / "bench/e2e/make_packed_llama.py", self.config(name), folder, "--like", work / "tables"], 200)

    def train(self, row, model, flags, limit, read):
        bench = self.programs / "train_bench"
        if not bench.exists():
            bench = self.programs / "bench/train_bench"
        if not bench.exists():
            return self.write(row, "cannot run", why="train_bench was not built")
        metrics = Path(self.work.name) / f"{row.replace(' ', '_')}.jsonl"
        return self.run(row, [bench, "--model", self.models[model], "--out", metrics, *flags], limit,
                        lambda _: read([json.loads(line) for line in metrics.read_text().splitlines()]))


def last_lines(line, n):
    return "\n    ".join(line.get("why", "").splitlines()[-n:])


def programs_start(rows):
    """On the CPU: libtorch and the C library of this machine are such that the programs work at all."""
    rows.run("programs start", [rows.programs / "tessera", "verify", ROOT / "tests/data/goldens/A_models/gpt2", "--device", "cpu"], 60)


def verify(rows, family, names, flags=(), form="resident", before=()):
    """A function for each model."""
    def one(name):
        words = [*before, rows.programs / "tessera", *flags, "verify", ROOT / "tests/data/goldens" / family / name, "--sharded",
                 "--device", rows.device]
        rows.run(f"verify {form} {family}/{name}", words, 60,
                 lambda output: {"verified": output.splitlines()[-1].startswith("verified") or 1 / 0})

    return [lambda name=name: one(name) for name in names]


def losses(lines):
    return [line["loss"] for line in lines if "loss" in line]


def close(mine, other, tolerance):
    assert len(mine) == len(other) and all(math.isfinite(x) for x in mine), f"{mine} beside {other}"
    worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(mine, other))
    assert worst <= tolerance, f"losses differ by {worst:.1e}, more than {tolerance}: {mine} beside the CPU's {other}"
    return worst


def same_losses(rows, row, model, flags, tolerance):
    """`tessera sft` on the CPU, and on the device in both forms: resident (stopped in the middle and resumed), and offloaded.

    Returns the first function of this, for Rows.side_by_side."""
    found, saved = {}, "checkpoint-3"

    def folder(name):
        return Path(rows.work.name) / f"{name} {row}".replace(" ", "_")

    def sft(name, launch, more, check, steps=6):
        out = folder("resident" if name == "resumed" else name)

        def read(_):
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            mine = [line["train_loss_exact"] for line in lines if "train_loss_exact" in line][-steps:]
            assert len(mine) == steps, f"expected {steps} steps, found {mine}"
            return {"losses": mine, **check(mine)}

        words = [rows.programs / "tessera", *launch, "sft", "--model_name_or_path", rows.models[model],
                 "--dataset_name", ROOT / "tests/data/tiny_chat", "--dataset_cache_dir", folder("cache"), "--output_dir", out, "--logging_steps", "1", "--disable_tqdm",
                 "--max_seq_length", "128", "--seed", "7", "--learning_rate", "1e-2", "--max_steps", "6", "--print_model", "false", *flags]
        rows.run(f"sft {name} {row}", [*words, *more], 90, read)

    beside = lambda mine: {"worst": close(mine, found["cpu"][-len(mine):], tolerance)}

    def cpu():
        sft("cpu", [], ["--device", "cpu", "--save_strategy", "no"], lambda mine: found.update(cpu=mine) or {})
        if "cpu" in found:
            return [resident, offloaded]
        rows.write(f"sft on the device {row}", "left out", why="there is nothing to compare with")

    def resident():
        sft("resident", [], ["--device", rows.device, "--save_steps", "3"], beside)
        if (folder("resident") / saved).exists():
            return [resumed]
        rows.write(f"sft resumed {row}", "left out", why="there is nothing to resume from")

    def resumed():
        sft("resumed", [], ["--device", rows.device, "--resume_from_checkpoint", folder("resident") / saved, "--save_strategy", "no"],
            beside, steps=3)

    def offloaded():
        sft("offloaded", OFFLOADED, ["--device", rows.device, "--save_strategy", "no"], beside)

    return cpu


def tensors_in(folder):
    """Shape and bytes of each tensor of model.safetensors."""
    data = (folder / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    return {name: (info["dtype"], info["shape"], data[begin + info["data_offsets"][0]:begin + info["data_offsets"][1]])
            for name, info in json.loads(data[8:begin]).items() if name != "__metadata__"}


def worst_difference(mine, other):
    """Of float32 tensors, beside their largest value; all others must be equal."""
    assert mine.keys() == other.keys(), f"{sorted(mine.keys() ^ other.keys())} are in one folder alone"
    worst = 0.0
    for name, (dtype, shape, values) in mine.items():
        assert (dtype, shape) == other[name][:2], f"{name}: {dtype} {shape} beside the CPU's {other[name][:2]}"
        if values == other[name][2]:
            continue
        assert dtype == "F32", f"{name}: other bytes than the CPU's"
        a, b = array("f", values), array("f", other[name][2])
        assert all(map(math.isfinite, a)), f"{name} has values that are no numbers"
        worst = max(worst, max(abs(x - y) for x, y in zip(a, b)) / max(map(abs, b)))
    return worst


def same_folders(rows, row, words):
    """What `merge` or `export` writes on the device, beside the CPU's; `words` end before the folder. Returns a function."""
    def write(place, device, read):
        out = Path(rows.work.name) / f"{place} {row}".replace(" ", "_").replace("/", "_")
        found = rows.run(f"{row}, {place}", [rows.programs / "tessera", *words, out, "--dtype", "float32", "--device", device], 60,
                         lambda _: read(tensors_in(out)))
        return found and tensors_in(out)

    def both():
        expected = write("cpu", "cpu", lambda _: {})
        if expected is None:
            return rows.write(f"{row}, device", "left out", why="there is nothing to compare with")

        def read(found):
            worst = worst_difference(found, expected)
            assert worst <= 1e-5, f"weights differ by {worst:.1e} of a tensor's largest value, more than 1e-5"
            return {"worst": worst}

        write("device", rows.device, read)

    return both


def merges(rows):
    goldens = ROOT / "tests/data/goldens"
    packed = goldens / "C_quant"
    names = ["B_train/llama_dora"] if rows.dry else ["B_train/llama_dora", "J_peft/llama_oft", "J_peft/llama_boft", "J_peft/llama_hra",
                                                     "J_peft/llama_lokr_both", "J_peft/llama_fourierft", "J_peft/llama_trainable_tokens"]
    tasks = [same_folders(rows, f"merge {name}", ["merge", "--model", goldens / "B_train/base_llama",
                                                  "--adapter", goldens / name / "adapter_final", "--output_dir"]) for name in names]
    for base, flags in [("base_llama", ["--type", "nf4", "--double_quant"]), ("base_llama", ["--type", "int8"]), ("model_nf4", []), ("model_int8", [])]:
        tasks.append(same_folders(rows, " ".join(["export", base, *flags]), ["export", *flags, packed / base]))
    return tasks


def equal_runs(rows):
    """Two runs with --full_determinism have the same losses, bit for bit; returns a function."""
    def losses_of(name):
        out = Path(rows.work.name) / f"equal_{name}"
        words = [rows.programs / "tessera", "sft", "--model_name_or_path", rows.models["tiny_chat"], "--dataset_name",
                 ROOT / "tests/data/tiny_chat", "--dataset_cache_dir", Path(rows.work.name) / "cache_equal", "--output_dir", out,
                 "--logging_steps", "1", "--disable_tqdm", "--max_seq_length", "128", "--learning_rate", "1e-2", "--max_steps", "6",
                 "--print_model", "false", "--bf16", "--full_determinism", "--save_strategy", "no", "--device", rows.device]
        found = []

        def read(_):
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            found.extend(line["train_loss_exact"] for line in lines if "train_loss_exact" in line)
            assert len(found) >= 6, f"expected 6 steps, found {found}"
            assert name == "first" or found == first, f"{found} beside {first}"
            return {"losses": found}

        rows.run(f"sft full_determinism, {name} run", words, 90, read)
        return found

    first = []

    def both():
        first.extend(losses_of("first"))
        losses_of("second")

    return both


def json_lines(output):
    found = []
    for line in output.splitlines():
        try:
            found += [json.loads(line)] if line.startswith("{") else []
        except ValueError:
            pass  # cut short, or not ours
    return found


def kernels(rows):
    """Each kernel beside a plain form of it: runs alone, for its times. Returns functions that may run beside others."""
    check = rows.programs / "kernel_check"
    library = next((f for f in (rows.programs.parent / "lib/libtessera_cuda.so", rows.programs / "libtessera_cuda.so") if f.exists()), None)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    missing = ("of the GPU alone: a dry run has none" if rows.dry else "kernel_check was not built" if not check.exists() else
               "libtessera_cuda.so was not built" if library is None else None)
    if missing:
        rows.write("kernels", "cannot run", why=missing)
    else:
        rows.run("kernels", [check, library], 60, keep=lambda output: {"checks": json_lines(output)})
    missing = missing or (None if sanitizer else "this machine has no compute-sanitizer")
    if missing:
        return rows.write("compute-sanitizer", "cannot run", why=missing) or []
    words = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", check, library, "--quick"]
    return [lambda: rows.run("compute-sanitizer", words, 120) and None]


def run_tests(rows, options):
    rows.environment["OMP_NUM_THREADS"] = str(THREADS)
    programs_start(rows)
    rows.python("ceilings", CEILINGS, 60)
    tasks = kernels(rows)
    small = ["gpt2", "llama_gqa_rope3"] if rows.dry else sorted(p.name for p in (ROOT / "tests/data/goldens/A_models").iterdir()
                                                                  if (p / "expect.json").exists() and p.name != "logits_processors")
    runs = ["llama_dora", "t5_full"] if rows.dry else ["bert_lora_cls", "gpt2_lora", "hf_trainer", "llama_dora", "llama_lora_embed", "t5_full",
                                                      "t5_layers_patterns", "t5_lora_qv", "t5u_dora_save_head"]
    lora = ["--use_peft_lora", "--lora_r", "4", "--lora_target_modules", "all-linear", "--lora_dropout", "0.1"]
    of_experts = ["--use_peft_lora", "--lora_r", "8", "--lora_target_modules", "all-linear", "--lora_dropout", "0.1"]
    settings = [("full fp32", "tiny_chat", [], 1e-4), ("NF4 LoRA bf16", "tiny_chat", ["--bf16", "--use_4bit_quantization", *lora], 3e-2),
                ("full bf16", "tiny_chat", ["--bf16"], 3e-2),
                ("LoRA bf16 recomputation", "tiny_chat", ["--bf16", "--gradient_checkpointing", *lora], 3e-2),
                ("mixture full bf16", "tiny_mixture", ["--bf16"], 3e-2),
                ("mixture LoRA bf16", "tiny_mixture", ["--bf16", *of_experts], 3e-2),
                ("mixture NF4 LoRA bf16", "tiny_mixture", ["--bf16", "--use_4bit_quantization", *of_experts], 3e-2),
                ("8-bit AdamW", "tiny_chat", ["--optim", "adamw_8bit"], 3e-2), ("Adafactor", "tiny_chat", ["--optim", "adafactor"], 1e-4)]
    settings = [s for s in settings if not rows.dry or s[0] in ("full fp32", "NF4 LoRA bf16", "mixture full bf16")]
    for model in sorted({model for _, model, *_ in settings}):
        rows.make(model, Path(rows.work.name))
    for row, model, flags, tolerance in settings:
        if model in rows.models:
            tasks.append(same_losses(rows, row, model, flags, tolerance))
        else:
            rows.write(f"sft {row}", "left out", why="the model was not made")
    if "tiny_chat" in rows.models:
        tasks.append(equal_runs(rows))
    tasks += merges(rows)
    tasks += verify(rows, "B_train", runs)
    tasks += verify(rows, "A_models", small)
    tasks += verify(rows, "B_train", runs[:1] if rows.dry else ["llama_dora", "t5_full", "gpt2_lora"], OFFLOADED, "offloaded")
    for transport in ("host", "nccl"):
        tasks += verify(rows, "B_train", runs[:2] if rows.dry else ["llama_dora", "t5_full", "hf_trainer"],
                        ["launch", "--use_fsdp", "--num_processes", "2", "--num_cpu_threads_per_process", "1"],
                        f"2 ranks, {transport}",
                        ["env", "TESSERA_SHARE_GPUS=1", "NCCL_SOCKET_IFNAME=lo", f"TESSERA_DEVICE_TRANSPORT={transport}"])
    rows.side_by_side(tasks, options.jobs)


def speed(rows, tokens, gflop):
    """Of the second half of the steps."""
    def read(lines):
        seconds = [line["step_seconds"] for line in lines if "step_seconds" in line]
        seconds = sorted(seconds[len(seconds) // 2:])
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
         ("3 3B full", "3b", 4, 20.5, []),
         ("9 mixture full", "mixture", 4, 1.7, []),
         ("7 70B NF4 recomputation", "70b packed", 2, 429, ["--lora_r", "16", "--activation_checkpointing"])]


def run_peer(rows, row, model, batch, length, gflop, steps, flags):
    """The same of transformers (and PEFT), where they are."""
    def read(output):
        found = json_lines(output)[-1]
        if "cannot_run" in found:
            raise CannotRun(found["cannot_run"])
        return {**found, "share_of_peak": round(found["tokens_s"] * gflop / 1e3 / PEAK_TFLOPS, 4)}

    words = [sys.executable, ROOT / "bench/gpu/peers.py", "--model", rows.models[model], "--batch", batch, "--length", length,
             "--steps", steps, "--device", rows.device, *flags]
    return rows.run(row, words, 120, read)


def beside_peers(rows, pairs):
    """How many times the peer's tokens/s, and the first loss of both: the same weights and tokens."""
    both = {row: (mine, peer) for row, mine, peer in pairs if mine and peer}
    if not both:
        return rows.write("times peer", "cannot run", why="no row has both")
    rows.write("times peer", "ok", **{row: {"times_peer": round(mine["tokens_s"] / peer["tokens_s"], 3),
                                            "tokens_s": [mine["tokens_s"], peer["tokens_s"]], "peak_gb": [mine["peak_gb"], peer["peak_gb"]],
                                            "first_loss": [mine["losses"][0], peer["losses"][0]]} for row, (mine, peer) in both.items()})


def run_bench(rows, options):
    chosen = []
    for row, model, batch, gflop, flags in [BENCH[0], BENCH[-1]] if rows.dry else BENCH:
        peer = f"{row}: transformers" + (" + PEFT" if "--lora_r" in flags else "") + (" + bitsandbytes" if "--load_in_4bit" in flags else "")
        has_peer = options.peers and "packed" not in model
        names = [row if rows.wanted(row) else None, peer if has_peer and rows.wanted(peer) else None]
        if any(names):
            chosen.append((row, names, ("tiny packed" if "packed" in model else "tiny") if rows.dry else model, batch, gflop, flags))
    if rows.wanted("programs start"):
        programs_start(rows)
    if rows.wanted("ceilings"):
        rows.python("ceilings", CEILINGS, 60)

    models = [model for _, _, model, *_ in chosen]
    sizes = [gigabytes(model) for model in set(models)]  # one at a time, unless they stay
    with tempfile.TemporaryDirectory(prefix="tessera_models_", dir=fast_folder(max(sizes, default=0))) as made:
        folder = Path(options.models or made).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        pairs = []
        for i, (row, (mine, peer), model, batch, gflop, flags) in enumerate(chosen):
            length = 64 if rows.dry else 2048
            if model not in models[:i]:
                rows.make(model, folder)
            if model not in rows.models:
                for name in filter(None, (mine, peer)):
                    rows.write(name, "left out", why=f"the model {model} was not made")
                continue
            ours = mine and rows.train(mine, model, ["--precision", "bf16", "--batch", batch, "--length", length, "--steps", options.steps,
                                                     "--clip", "1", "--device", rows.device, *flags], 100, speed(rows, batch * length, gflop))
            pairs.append((row, ours, peer and run_peer(rows, peer, model, batch, length, gflop, options.steps, flags)))
            if not options.models and model not in models[i + 1:]:
                shutil.rmtree(rows.models[model])
    if options.peers and pairs:
        beside_peers(rows, pairs)
    row = "8 8B full, optimizer on the CPU"
    if rows.wanted(row):
        rows.write(row, "cannot run", why="masters, gradients and moments are 128 GB of the host's memory; the optimizer does not overlap with backward yet")


def at_least(least):
    def parse(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, found {text}")
        return int(text)

    return parse


def main():
    parser = argparse.ArgumentParser(prog="run.sh")
    parts = parser.add_subparsers(dest="part", required=True)
    tests, bench = (parts.add_parser(name) for name in ("tests", "bench"))
    for part in (tests, bench):
        part.add_argument("--programs", required=True)
        part.add_argument("--out", required=True)
        part.add_argument("--dry", action="store_true")
    tests.add_argument("--jobs", type=at_least(1), default=8)
    bench.add_argument("--only")
    bench.add_argument("--steps", type=at_least(4), default=6)  # two to warm up
    bench.add_argument("--models")
    bench.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    rows = Rows(options)
    if not rows.dry and rows.python("machine", DEVICE_FACTS, 60) is None:
        print("run.sh: torch finds no GPU (see the row 'machine'); look at nvidia-smi and CUDA_VISIBLE_DEVICES", file=sys.stderr)
        return 3
    (run_tests if options.part == "tests" else run_bench)(rows, options)
    if all(line["row"] == "machine" for line in rows.ended):
        print(f"run.sh: no row begins with '{options.only}'", file=sys.stderr)
        return 2
    rows.summary()
    return 1 if rows.bad() else 0


if __name__ == "__main__":
    sys.exit(main())
