#!/usr/bin/env bash
# The demo's commands: examples/demo/t5.sh TESSERA_PROGRAM OUTPUT_FOLDER (scripts/demo.sh calls it when offline).
set -euo pipefail
tessera=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
started=$SECONDS
say() { printf '\n== %s\n' "$*"; }

rm -rf "$out"
mkdir -p "$out"
sharded=("$tessera" launch --config_file "$here/fsdp_config.yaml" --fsdp_transformer_layer_cls_to_wrap T5Block seq2seq --max_length 64 --max_target_length 2 --logging_steps 25 --seed 42)

say "a T5 of a million random weights"
"$tessera" init-model "$here/model" "$out/random" --seed 42

say "step 1 of 2: it learns to read figures and moods (all weights, two processes, fully sharded)"
"${sharded[@]}" --model_name_or_path "$out/random" --dataset_path "$here/data/reading_demo.csv" --use_peft_lora false \
    --per_device_train_batch_size 16 --max_steps 300 --learning_rate 2e-3 --output_dir "$out/reader"

say "step 2 of 2: financial sentiment (LoRA on the frozen model, two processes, fully sharded)"
"${sharded[@]}" --model_name_or_path "$out/reader" --dataset_path "$here/data/Sentences_demo.txt" --lora_r 16 --lora_alpha 32 --lora_dropout 0.1 --lora_target_modules all-linear \
    --per_device_train_batch_size 8 --max_steps 450 --learning_rate 1.5e-3 --output_dir "$out/adapter"

say "done in $((SECONDS - started)) s; always answering 'neutral' would be right for 45% of the rows"
echo "The adapter, in PEFT's format: $out/adapter"
