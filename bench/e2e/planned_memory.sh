#!/usr/bin/env bash
# What ranks held in whole runs (forward, backward, update, saves, evaluation), beside what the run planned before its first step: a row
# a setting. memory.sh compares the formula of sharding with short rows and no files; here are activations, saves in the background,
# gradients that accumulate, several tasks, and offload.
#
#   bench/e2e/planned_memory.sh CAUSAL_MODEL T5_MODEL WORK_FOLDER [RANKS [PATTERN]]
#
# The models' folders have tokenizers; their weights may be random (tessera init-model). WORK_FOLDER gets rows of random words, the runs
# and the offload folder. RANKS: 1 by default. PATTERN: of the names of rows, all by default.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
causal=$1 t5=$2 work=$3 ranks=${4:-1} pattern=${5:-.}
tessera=${TESSERA:-$here/../../build/release/tessera}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1
mkdir -p "$work/texts"

awk -v texts="$work/texts/train.jsonl" -v pairs="$work/pairs.jsonl" -v preferences="$work/preferences.jsonl" -v labels="$work/labels.jsonl" 'BEGIN {
  srand(1); count = split("the cat house sharded training model runs over many ranks and memory is planned before a step", word, " ")
  for (i = 0; i < 64; ++i) {
    print "{\"text\": \"" text(300) "\"}" > texts
    print "{\"input\": \"" text(500) "\", \"target\": \"" text(100) "\"}" > pairs
    print "{\"prompt\": \"" text(60) "\", \"chosen\": \"" text(60) "\", \"rejected\": \"" text(60) "\"}" > preferences
    print "{\"text\": \"" text(300) "\", \"label\": \"" (i % 2 ? "good" : "bad") "\"}" > labels
  }
}
function text(n,   out) { while (n-- > 0) out = out word[1 + int(rand() * count)] " "; return out }'
head -n 16 "$work/texts/train.jsonl" >"$work/texts/test.jsonl"

echo "| run | ranks | planned MiB | measured MiB | measured / planned |"
echo "|---|---|---|---|---|"
# NAME TASK FLAGS...: a row
row() {
  local name=$1 task=$2
  shift 2
  [[ $name =~ $pattern ]] || return 0
  local model=$causal rows=texts length=192
  case $task in
    seq2seq) model=$t5 rows=pairs.jsonl length=512 ;;
    dpo) rows=preferences.jsonl ;;
    classify) rows=labels.jsonl ;;
  esac
  rm -rf "$work/out" "$work/offload"
  mkdir "$work/offload"
  "$tessera" $task --num_processes "$ranks" --model_name_or_path "$model" --dataset_name "$work/$rows" --output_dir "$work/out" \
    --per_device_train_batch_size 2 --max_length $length --max_steps 4 --save_strategy no --eval_strategy no --disable_tqdm true "$@" \
    >"$work/log" 2>&1 || { tail -n 5 "$work/log"; exit 1; }
  python3 -c '
import json, sys
last = [json.loads(line) for line in open(sys.argv[1])][-1]
planned = last["planned_memory_mib"] + last.get("measured_copies_mib", 0)
print("| %s | %s | %.0f | %.0f | %.2f |" % (sys.argv[2], sys.argv[3], planned, last["measured_memory_mib"], last["measured_memory_mib"] / planned))' \
    "$work/out/metrics.jsonl" "$name" "$ranks"
}

saves="--save_strategy steps --save_steps 1"
for precision in no bf16; do
  p="--mixed_precision $precision" name=${precision/no/fp32}
  row "$name" sft $p
  row "$name, saves" sft $p $saves
  row "$name, accumulation" sft $p --gradient_accumulation_steps 2
  row "$name, checkpointing" sft $p --gradient_checkpointing true
  row "$name, SHARD_GRAD_OP" sft $p --fsdp_sharding_strategy SHARD_GRAD_OP
  row "$name, NO_SHARD" sft $p --fsdp_sharding_strategy NO_SHARD
  row "$name, packing" sft $p --packing true
  row "$name, evaluation" sft $p --eval_strategy steps --eval_steps 2
  row "$name, AdamW 8-bit" sft $p --optim adamw_8bit
  row "$name, Adafactor" sft $p --optim adafactor
  row "$name, offload" sft $p --fsdp_offload_folder "$work/offload"
  row "$name, offload, saves" sft $p --fsdp_offload_folder "$work/offload" $saves
  row "$name, LoRA" sft $p --use_peft true
  row "$name, LoRA, saves" sft $p --use_peft true $saves
  row "$name, LoRA, checkpointing" sft $p --use_peft true --gradient_checkpointing true
  row "$name, LoRA, offload" sft $p --use_peft true --fsdp_offload_folder "$work/offload"
  row "$name, DoRA" sft $p --use_peft true --use_dora true
  row "$name, QLoRA" sft $p --use_peft true --load_in_4bit true
  row "$name, LoRA over LLM.int8()" sft $p --use_peft true --load_in_8bit true
  row "$name, DPO" dpo $p
  row "$name, DPO, LoRA" dpo $p --use_peft true
  row "$name, classify" classify $p --use_peft false
  row "$name, T5" seq2seq $p --use_peft false --max_target_length 128
  row "$name, T5, checkpointing" seq2seq $p --use_peft false --max_target_length 128 --gradient_checkpointing true
  row "$name, T5, LoRA" seq2seq $p --use_peft true --max_target_length 128
  row "$name, T5, LoRA, short answers" seq2seq $p --use_peft true --max_target_length 8
done
