#!/usr/bin/env bash
# What a rank holds at most (the mean over the ranks' own peaks of proportional memory, above what they held before the model), beside the
# formula of docs/guides/sharding.md, for each strategy, precision and place of the state. Two ranks, short rows, so that
# activations do not matter.
#
#   bench/e2e/memory.sh MODEL_FOLDER TOKENS ADAPTER_FOLDER DISK_FOLDER [full | lora | "full lora"]
#
# TOKENS and ADAPTER_FOLDER: as bench/peers/causal_lm.py prepare --seq 16 --adapter makes them. A frozen table is read where it is
# mapped, row by row; measure LoRA on a model whose output head is its table (llama_450m), so that all rows are.
set -euo pipefail
model=$1 tokens=$2 adapter=$3 disk=$4 kinds=${5:-full lora}
program=$(dirname "${TESSERA:-$(dirname "$0")/../../build/release/tessera}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
echo "| trained | strategy | precision | state | formula MiB | held MiB | held / formula | base MiB |"
echo "|---|---|---|---|---|---|---|---|"
for kind in $kinds; do
  for precision in fp32 bf16; do
    for strategy in FULL_SHARD SHARD_GRAD_OP NO_SHARD; do
      for place in memory disk; do
        options=()
        [ $kind = lora ] && options+=(--adapter "$adapter")
        [ $place = disk ] && options+=(--offload_folder "$disk")
        rm -f "$work/out"
        "$program/tessera" launch --use_cpu --num_processes 2 "$program/bench/train_bench" --model "$model" --tokens "$tokens" \
          --batch 1 --steps 16 --memory --precision $precision --strategy $strategy "${options[@]}" --out "$work/out" >"$work/log" 2>&1 ||
          { tail -n 5 "$work/log"; exit 1; }
        python3 -c '
import json, sys
r = [json.loads(line) for line in open(sys.argv[1])][-1]
row = (r["formula_mib"], r["held_mib"], r["held_mib"] / r["formula_mib"], r["base_mib"])
print("|", " | ".join(sys.argv[2:]), "| %.0f | %.0f | %.2f | %.0f |" % row)' "$work/out" $kind $strategy $precision $place
      done
    done
  done
done
