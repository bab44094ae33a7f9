#!/usr/bin/env bash
# The demo's commands: examples/demo/smollm2.sh TESSERA_PROGRAM MODEL_FOLDER OUTPUT_FOLDER (scripts/demo.sh calls it).
set -euo pipefail
tessera=$1 model=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
started=$SECONDS
say() { printf '\n== %s\n' "$*"; }

rm -rf "$out"
mkdir -p "$out"
sharded=("$tessera" launch --config_file "$here/fsdp_config.yaml" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer)
ask() {
    "${sharded[@]}" generate --model "$model" --input_file "$here/chats/test.jsonl" --max_new_tokens 12 --batch_size 20 "${@:2}" >"$out/$1.jsonl"
    echo "three of its answers:"
    sed -n '1p;21p;41p' "$out/$1.jsonl" | sed -E 's/.*"generated":(\[.*\]),"expected":(.*)}$/  \1   expected \2/'
}

say "60 questions to the model as it is"
ask before

say "fine-tuning with LoRA on two processes, fully sharded"
"${sharded[@]}" sft --model_name_or_path "$model" --dataset_name "$here/chats" --splits train,test \
    --use_peft_lora true --lora_r 8 --lora_alpha 16 --lora_dropout 0.0 --lora_target_modules all-linear \
    --per_device_train_batch_size 4 --max_steps 120 --learning_rate 5e-4 --lr_scheduler_type cosine --warmup_ratio 0.05 \
    --logging_steps 10 --print_model false --save_strategy no --seed 42 --output_dir "$out/adapter"

say "the same questions, with the adapter"
ask after --adapter "$out/adapter"

say "done in $((SECONDS - started)) s"
echo "The adapter, in PEFT's format: $out/adapter; every answer: $out/before.jsonl, $out/after.jsonl"
