#!/usr/bin/env bash
# What a rank holds at most (memory_watch.h says how it counts; mean over the ranks, above what they hold without the
# model), beside the formula of docs/guides/sharding.md, for each strategy, precision and place of the state. Two ranks,
# short rows, so that activations do not matter.
#
#   bench/e2e/memory.sh MODEL_FOLDER TOKENS ADAPTER_FOLDER DISK_FOLDER [kinds, of: full lora qlora shapes; "full lora" by default]
#
# qlora: LoRA over a base that is packed in NF4, doubly quantised, as it is read. shapes: LoRA in bf16 with rows of 512 and 1024 tokens,
# with and without activation checkpointing: the activations of the formula.
#
# TOKENS and ADAPTER_FOLDER: as bench/peers/causal_lm.py prepare --seq 16 --adapter makes them. A frozen table is read where it is
# mapped, row by row; measure LoRA on a model whose output head is its table (llama_450m), so that all rows are.
# PEER_PYTHON, a Python with bench/peers/requirements.txt, adds two columns: what a rank of torch FSDP2 takes under the
# same strategy in memory (PSS at its highest, the mean over the ranks), and held + base as a part of that.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 tokens=$2 adapter=$3 disk=$4 kinds=${5:-full lora} python=${PEER_PYTHON:-}
program=$(dirname "${TESSERA:-$here/../../build/release/tessera}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

# MiB of a rank of FSDP2: KIND PRECISION STRATEGY
peer_mib() {
  local adapted=
  [ "$1" = lora ] && adapted="--adapter '$adapter'"
  "$here/in_turns.py" --rounds 1 --steps 16 --interval 0.02 --run "fsdp2='$(dirname "$python")/torchrun' --nproc_per_node 2 '$here/../peers/causal_lm.py' train \
    --api fsdp2 --model '$model' --tokens '$tokens' $adapted --batch 1 --steps {steps} --precision $2 --strategy $3 --out {metrics}" >"$work/peer"
  python3 -c 'import json, sys; pss = json.loads(open(sys.argv[1]).readline())["pss_mib"]; print(sum(pss) / len(pss))' "$work/peer"
}

echo "| trained | strategy | precision | state | formula MiB | held MiB | held / formula | base MiB |${python:+ FSDP2 MiB | held + base, of that |}"
echo "|---|---|---|---|---|---|---|---|${python:+---|---|}"
# KIND STRATEGY PRECISION PLACE PEER FLAGS...: a row
row() {
  local kind=$1 strategy=$2 precision=$3 place=$4 peer=$5
  shift 5
  [ $place = disk ] && set -- "$@" --offload_folder "$disk"
  rm -f "$work/out"
  "$program/tessera" launch --use_cpu --num_processes 2 "$program/bench/train_bench" --model "$model" \
    --batch 1 --memory --precision $precision --strategy $strategy "$@" --out "$work/out" >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log"; exit 1; }
  python3 -c '
import json, sys
*names, peer = sys.argv[2:]
r = [json.loads(line) for line in open(sys.argv[1])][-1]
row = (r["formula_mib"], r["held_mib"], r["held_mib"] / r["formula_mib"], r["base_mib"])
beside = " %.0f | %.2f |" % (float(peer), (r["held_mib"] + r["base_mib"]) / float(peer)) if peer else ""
print("|", " | ".join(names), "| %.0f | %.0f | %.2f | %.0f |" % row + beside)' "$work/out" "$kind" $strategy $precision $place "$peer"
}

for kind in $kinds; do
  if [ $kind = shapes ]; then
    for length in 512 1024; do
      row "lora, $length tokens" FULL_SHARD bf16 memory "" --length $length --steps 3 --lora_r 8
      row "lora, $length tokens, checkpointed" FULL_SHARD bf16 memory "" --length $length --steps 3 --lora_r 8 --activation_checkpointing
    done
    continue
  fi
  for precision in fp32 bf16; do
    for strategy in FULL_SHARD SHARD_GRAD_OP NO_SHARD; do
      peer=
      [ -z "$python" ] || [ $kind = qlora ] || peer=$(peer_mib $kind $precision $strategy)
      for place in memory disk; do
        options=(--steps 16)
        case $kind in
          full) options+=(--tokens "$tokens") ;;
          lora) options+=(--tokens "$tokens" --adapter "$adapter") ;;
          qlora) options+=(--tokens "$tokens" --lora_r 8 --load_in_4bit --use_nested_quant) ;;
        esac
        row $kind $strategy $precision $place "$peer" "${options[@]}"
      done
    done
  done
done
