#!/usr/bin/env bash
# QLoRA of Llama-2-70B's shape on two ranks, its weights in NF4 (doubly quantised, random) mapped from a disk: memory, time of a step
# beside its limit, and that a smaller depth gives the losses of a run with everything in memory.
#
#   bench/e2e/qlora_70b.sh DISK_FOLDER [LAYERS [LENGTH [STEPS]]]
#
# LAYERS: 80; fewer where the disk has not 38 GB. The folder's model is left there; remove it afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
disk=$1 layers=${2:-80} length=${3:-32} steps=${4:-2}
program=$(dirname "${TESSERA:-$here/../../build/release/tessera}")
export OMP_NUM_THREADS=1
work=$disk/qlora_70b
mkdir -p "$work/tiny" "$work/config"
cat >"$work/config/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
 "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 80, "vocab_size": 32000, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
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

# NAME MODEL FLAGS...: the numbers of a run in $work/NAME.jsonl
run() {
  local name=$1 model=$2
  shift 2
  rm -f "$work/$name.jsonl"
  "$program/tessera" launch --use_cpu --num_processes 2 "$program/bench/train_bench" --model "$model" --length "$length" --batch 1 --lora_r 8 \
    --precision bf16 --activation_checkpointing --out "$work/$name.jsonl" "$@" >"$work/log" 2>&1 || { tail -n 5 "$work/log"; exit 1; }
}

python3 "$here/make_packed_llama.py" "$work/config" "$work/shallow" --like "$work/packed" --layers 2
run in_memory "$work/shallow" --steps 3
run on_disk "$work/shallow" --steps 3 --offload_folder "$work"
python3 - "$work" <<'PY'
import json, sys
losses = [[r["loss"] for r in map(json.loads, open(f"{sys.argv[1]}/{name}.jsonl")) if "loss" in r] for name in ("in_memory", "on_disk")]
print("losses of 2 layers, in memory and from the disk:", *losses, "equal" if losses[0] == losses[1] else "DIFFERENT")
sys.exit(losses[0] != losses[1])
PY

[ -f "$work/deep/model.safetensors.index.json" ] || python3 "$here/make_packed_llama.py" "$work/config" "$work/deep" --like "$work/packed" --layers "$layers"
file=$(ls "$work"/deep/model-00001-*)
rate=$(dd if="$file" of=/dev/null bs=16M iflag=direct 2>&1 | awk '/copied/ {print $(NF-1), $NF}')
swapped=$(awk '/^pswpout/ {print $2}' /proc/vmstat)
run deep "$work/deep" --steps "$steps" --offload_folder "$work" --memory
swapped=$(($(awk '/^pswpout/ {print $2}' /proc/vmstat) - swapped))
python3 - "$work" "$layers" "$length" "$rate" "$swapped" <<'PY'
import json, os, sys
work, layers, length, rate, swapped = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(), sys.argv[5]
rows = [json.loads(line) for line in open(work + "/deep.jsonl")]
memory = rows[-1]
steps = [r["step_seconds"] for r in rows if "step_seconds" in r]
gemm = next(r["gemm_gflops"]["bf16"] for r in map(json.loads, open(work + "/in_memory.jsonl")) if "gemm_gflops" in r)
size = sum(os.path.getsize(f"{work}/deep/{f}") for f in os.listdir(work + "/deep"))
disk = size * 2 / (float(rate[0]) * {"GB/s": 1e9, "MB/s": 1e6}[rate[1]])
elements = layers * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 28672 * 8192)
compute = length * (6 * elements + 6 * 32000 * 8192) / (gemm * 1e9)  # forward, again, the inputs' gradients
print(f"{layers} layers, {size / 1e9:.1f} GB, rows of {length} tokens, steps {', '.join(f'{s:.1f}' for s in steps)} s")
print(f"limit: disk {disk:.1f} s (twice the folder at {' '.join(rate)}, page cache not counted), products {compute:.1f} s (at {gemm:.0f} GFLOP/s a rank): "
      f"the last step takes {steps[-1] / max(disk, compute):.2f} of it")
print(f"private memory of both ranks {memory['private_mib'] / 1024:.2f} GiB; a rank holds {memory['held_mib']:.0f} MiB above {memory['base_mib']:.0f}, planned {memory['formula_mib']:.0f}; "
      f"pages swapped out {swapped}")
PY
