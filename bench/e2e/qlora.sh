#!/usr/bin/env bash
# QLoRA (NF4, double quantisation, bf16) beside LoRA over the same model in bf16 and over it in 8 bits (LLM.int8()), and beside peft
# with bitsandbytes on the same cores, in turns: same rows, same adapter (r 8, all linear layers).
#
#   bench/e2e/qlora.sh MODEL_FOLDER [PEER_PYTHON] [options of in_turns.py: --rounds 5 --steps 8]
#
# `tessera init-model bench/e2e/llama_120m FOLDER` makes a model; there are also smollm2_135m and llama_1b. Without PEER_PYTHON (bench/peers/
# requirements.txt, bitsandbytes) rows and adapter are tessera's own. PEERS: which to run ("process fsdp2": one process with a
# thread for each rank and all their rows; FSDP2 of as many ranks). SEQ, BATCH, RANKS: tokens of a row, rows of a rank, ranks (256, 1, 2).
# WORK: a folder that keeps the packed model, rows, adapter and results.jsonl. TESSERA names another program than build/release/tessera. The last lines
# compare the fastest turns, which is what a busy machine leaves to compare.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 python=
shift
if [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; then python=$1; shift; fi
tessera=${TESSERA:-$here/../../build/release/tessera}
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
peer="$here/../peers/causal_lm.py" batch=${BATCH:-1} seq=${SEQ:-256} ranks=${RANKS:-2}
mkdir -p "$work"
[ -e "$work/nf4/config.json" ] || "$tessera" quantize "$model" "$work/nf4" --type nf4 --double_quant
[ -e "$work/int8/config.json" ] || "$tessera" quantize "$model" "$work/int8" --type int8

rows="--length $seq --lora_r 8"
if [ -n "$python" ]; then
  [ -e "$work/adapter/adapter_config.json" ] ||
    "$python" "$peer" prepare --model "$model" --tokens "$work/tokens.safetensors" --seq "$seq" --adapter "$work/adapter"
  rows="--tokens '$work/tokens.safetensors' --adapter '$work/adapter'"
fi
ours="'$tessera' launch --use_cpu --num_processes $ranks --num_cpu_threads_per_process 1 '$(dirname "$tessera")/bench/train_bench' $rows --precision bf16 --batch $batch --steps {steps} --out {metrics}"
runs=(--run "qlora=$ours --model '$work/nf4'" --run "lora=$ours --model '$model'" --run "int8=$ours --model '$work/int8'")
if [ -n "$python" ]; then
  theirs="--model '$model' $rows --precision bf16 --load_in_4bit --steps {steps} --out {metrics}"
  for api in ${PEERS-process}; do
    case $api in
      process) runs+=(--run "process='$(dirname "$python")/torchrun' --nproc_per_node 1 '$peer' train --api none --threads $ranks --batch $((ranks * batch)) $theirs") ;;
      *) runs+=(--run "$api='$(dirname "$python")/torchrun' --nproc_per_node $ranks '$peer' train --api $api --batch $batch $theirs") ;;
    esac
  done
fi
results=$work/results.jsonl
rm -f "$results"
echo "load before: $(cut -d ' ' -f 1-3 /proc/loadavg)"
"$here/in_turns.py" "${runs[@]}" --ranks "$ranks" --rows $((ranks * batch)) --rows_tokens "$seq" --interval 5 --out "$results" "$@" || true
echo "load after: $(cut -d ' ' -f 1-3 /proc/loadavg)"
python3 - "$results" <<'EOF'
import json, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
best = {}
for run in runs:
    for key in ("step_ms", "cpu_ms"):
        if key in run:
            best[run["name"], key] = min(run[key], best.get((run["name"], key), run[key]))
for key in ("step_ms", "cpu_ms"):
    if ("qlora", key) not in best:
        continue
    mine = best["qlora", key]
    for name in dict.fromkeys(run["name"] for run in runs):
        if (name, key) in best:
            print(f"{key}, fastest turn: {name} {best[name, key]:.1f}, {best[name, key] / mine:.2f} of qlora")
EOF
