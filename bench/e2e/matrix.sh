#!/usr/bin/env bash
# The whole comparison with the Python stack, as docs/benchmarks.md has it: one table a job, contenders in turns.
#
#   bench/e2e/matrix.sh PEER_PYTHON MODEL_FOLDER... > tables.md
#
# For each model: LoRA and full fine-tuning in bf16 and fp32 at 256 tokens; then for the first one rows of 1024 tokens, activation
# checkpointing, and one rank beside one torch process without FSDP. ROUNDS and STEPS: how often each contender has its turn (5)
# and steps of a turn (8). ONLY: a regular expression of the titles to run. Takes hours at five rounds; leave the machine alone meanwhile.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1
shift
job() {  # title, model, kind, precision; the rest comes from the environment
  [[ $1 =~ ${ONLY:-.} ]] || return 0
  echo "### $1"
  echo
  "$here/causal_lm.sh" "$2" "$python" "$3" "$4" --rounds "${ROUNDS:-5}" --steps "${STEPS:-8}" | grep -v '^{' || echo "FAILED"
  echo
}
for model in "$@"; do
  for kind in lora full; do
    for precision in bf16 fp32; do job "$(basename "$model"), $kind, $precision, 256 tokens" "$model" $kind $precision; done
  done
done
model=$1 name=$(basename "$1")
for kind in lora full; do
  SEQ=1024 BATCH=1 job "$name, $kind, bf16, 1024 tokens" "$model" $kind bf16
  MORE=--activation_checkpointing job "$name, $kind, bf16, 256 tokens, activation checkpointing" "$model" $kind bf16
  for precision in bf16 fp32; do
    RANKS=1 PEERS="none fsdp2" job "$name, $kind, $precision, 256 tokens, one rank" "$model" $kind $precision
  done
done
