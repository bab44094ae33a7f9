#!/usr/bin/env bash
# QLoRA of Llama-2-70B's shape on two ranks, its weights in NF4 (doubly quantised, random) mapped from a disk: memory, time of a step
# beside its limit, what the disk does meanwhile, and that a smaller depth gives the losses of a run with everything in memory.
#
#   bench/e2e/qlora_70b.sh DISK_FOLDER [LAYERS [LENGTH [STEPS [MEMORY]]]]
#
# LAYERS: 80; fewer where the disk has not 38 GB. MEMORY: bytes that the deep run may use, the page cache included (a control group, for
# which one must be root): fewer layers in less memory are read from the disk as 80 are on a small machine. PRECISION=fp32: where products
# of bfloat16 are slower. SHAPE=13b: Llama-2-13B's. The folder's models are left there; remove them afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
disk=$1 layers=${2:-80} length=${3:-32} steps=${4:-3} memory=${5:-} precision=${PRECISION:-bf16} shape=${SHAPE:-70b}
program=$(dirname "${TESSERA:-$here/../../build/release/tessera}")
export OMP_NUM_THREADS=1
work=$disk/qlora_$shape
case $shape in
  70b) hidden=8192 inner=28672 heads=64 key_heads=8 ;;
  13b) hidden=5120 inner=13824 heads=40 key_heads=40 ;;
  *) echo "SHAPE: 70b or 13b, found $shape" && exit 2 ;;
esac
mkdir -p "$work/tiny" "$work/config"
cat >"$work/config/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $hidden, "intermediate_size": $inner, "num_attention_heads": $heads,
 "num_key_value_heads": $key_heads, "head_dim": 128, "num_hidden_layers": 80, "vocab_size": 32000, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
 "max_position_embeddings": 4096, "hidden_act": "silu", "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2}
JSON
python3 - "$work" <<'PY'
import json, sys
config = json.load(open(sys.argv[1] + "/config/config.json"))
config.update(hidden_size=64, intermediate_size=128, num_attention_heads=2, num_key_value_heads=2, head_dim=32, num_hidden_layers=1, vocab_size=100)
json.dump(config, open(sys.argv[1] + "/tiny/config.json", "w"))
PY
[ -f "$work/packed/config.json" ] || "$program/tessera" init-model "$work/tiny" "$work/tiny_model" >/dev/null
[ -f "$work/packed/config.json" ] || "$program/tessera" quantize "$work/tiny_model" "$work/packed" --type nf4 --double_quant >/dev/null

# NAME MODEL FLAGS...: the numbers of a run in $work/NAME.jsonl, the disk's in $work/NAME.disk
run() {
  local name=$1 model=$2
  shift 2
  rm -f "$work/$name.jsonl"
  "$here/disk_watch.py" "$work" "$work/$name.disk" "$program/tessera" launch --use_cpu --num_processes 2 "$program/bench/train_bench" \
    --model "$model" --length "$length" --batch 1 --lora_r 8 --precision "$precision" --activation_checkpointing --out "$work/$name.jsonl" "$@" \
    >"$work/log" 2>&1 || { tail -n 5 "$work/log"; exit 1; }
}

python3 "$here/make_packed_llama.py" "$work/config" "$work/shallow" --like "$work/packed" --layers 2
run in_memory "$work/shallow" --steps 3
run on_disk "$work/shallow" --steps 3 --offload_folder "$work"
# How long the products of a step take at best: of LAYERS blocks and the head, forward, again, and the inputs' gradients.
cat >"$work/products.py" <<PY
import json


def seconds(layers, length):
    rates = next(r["gemm_gflops"] for r in map(json.loads, open("$work/in_memory.jsonl")) if "gemm_gflops" in r)
    block = 2 * $hidden * $hidden + 2 * $key_heads * 128 * $hidden + 3 * $inner * $hidden
    return length * 6 * (layers * block + 32000 * $hidden) / (rates["$precision"] * 1e9), rates["$precision"]
PY
PYTHONPATH=$work python3 - "$work" "$length" <<'PY'
import json, products, sys
runs = [[r for r in map(json.loads, open(f"{sys.argv[1]}/{name}.jsonl")) if "loss" in r] for name in ("in_memory", "on_disk")]
losses = [[r["loss"] for r in run] for run in runs]
print("losses of 2 layers, in memory and from the disk:", *losses, "equal" if losses[0] == losses[1] else "DIFFERENT")
best, rate = products.seconds(2, int(sys.argv[2]))
took = min(r["step_seconds"] for r in runs[0])
print(f"2 layers in memory, rows of {sys.argv[2]} tokens: a step {took:.2f} s, products {best:.2f} s at {rate:.0f} GFLOP/s a rank: {took / best:.2f}")
sys.exit(losses[0] != losses[1])
PY

deep=$work/deep_$layers
[ -f "$deep/model.safetensors.index.json" ] || python3 "$here/make_packed_llama.py" "$work/config" "$deep" --like "$work/packed" --layers "$layers"
# Bytes that the disk reads in a second, past the page cache, by 16 requests of 4 MiB at a time; of 4 GB.
rate=$(python3 - "$deep"/model-*-of-*.safetensors <<'PY'
import concurrent.futures, mmap, os, sys, threading, time
PIECE = 4 << 20
files = [os.open(name, os.O_RDONLY | os.O_DIRECT) for name in sys.argv[1:]]
pieces = [(file, at) for file in files for at in range(0, os.fstat(file).st_size - PIECE, PIECE)][:1000]
own = threading.local()
def read(piece):
    if not hasattr(own, "buffer"):
        own.buffer = mmap.mmap(-1, PIECE)
    return os.preadv(piece[0], [own.buffer], piece[1])
begin = time.time()
with concurrent.futures.ThreadPoolExecutor(16) as threads:
    total = sum(threads.map(read, pieces))
print(int(total / (time.time() - begin)))
for file in files:  # pages in the cache, which others have paid for, would not count as the control group's
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
PY
)
swapped=$(awk '/^pswpout/ {print $2}' /proc/vmstat)
if [ -n "$memory" ]; then
  group=/sys/fs/cgroup/memory/tessera_70b limit=memory.limit_in_bytes
  [ -d /sys/fs/cgroup/memory ] || group=/sys/fs/cgroup/tessera_70b limit=memory.max
  mkdir -p "$group"
  echo "$memory" >"$group/$limit"
fi
(
  [ -z "$memory" ] || echo $BASHPID >"$group/cgroup.procs"
  run deep "$deep" --steps "$steps" --offload_folder "$work"
  run held "$deep" --steps 1 --offload_folder "$work" --memory # by itself: looking at memory takes time
)
swapped=$(($(awk '/^pswpout/ {print $2}' /proc/vmstat) - swapped))
PYTHONPATH=$work python3 - "$work" "$deep" "$layers" "$length" "$rate" "$swapped" "$precision" "${memory:-0}" <<'PY'
import json, os, products, sys
work, deep, layers, length, rate, swapped, precision, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:9]
rows = [json.loads(line) for line in open(work + "/deep.jsonl")]
memory = json.loads(open(work + "/held.jsonl").readlines()[-1])
steps = [r for r in rows if "step_seconds" in r]
size = sum(os.path.getsize(f"{deep}/{f}") for f in os.listdir(deep))
disk = size * 2 / rate
compute, gemm = products.seconds(layers, length)
looks = [json.loads(line) for line in open(work + "/deep.disk")]


def spent(step):
    """Of the disk, in a step."""
    during = [l for l in looks if step["time"] - step["step_seconds"] <= l["time"] <= step["time"]] or looks[-1:]
    return [during[-1][k] - during[0][k] for k in ("read_bytes", "busy_seconds")]


print(f"{layers} layers, {size / 1e9:.1f} GB, rows of {length} tokens, {precision}" + (f", {int(limit) / 1e9:.2f} GB of memory in all" if int(limit) else ""))
for s in steps:
    read, busy = spent(s)
    print(f"step {s['step']}: {s['step_seconds']:.1f} s, a rank's processor {s['cpu_seconds']:.1f} s; read {read / 1e9:.2f} GB, {read / size / 2:.2f} of the folder a pass; "
          f"the disk busy {busy / s['step_seconds']:.0%} of the time")
read, _ = spent(steps[-1])
print(f"limit: disk {disk:.1f} s (twice the folder at {rate / 1e9:.2f} GB/s, page cache not counted; {read / rate:.1f} s for what was read), "
      f"products {compute:.1f} s (at {gemm:.0f} GFLOP/s a rank): the last step takes {steps[-1]['step_seconds'] / max(disk, compute):.2f} of it")
print(f"private memory of both ranks {memory['private_mib'] / 1024:.2f} GiB; a rank holds {memory['held_mib']:.0f} MiB above {memory['base_mib']:.0f}, planned {memory['formula_mib']:.0f}; "
      f"pages swapped out {swapped}")
PY
