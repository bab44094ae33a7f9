#!/usr/bin/env bash
# `tessera dpo` beside the same run of TRL, PEFT and Accelerate, in turns: from the command to the first step, time of a step, memory.
# LoRA on all linear layers, the reference is the adapter switched off; two pairs a rank, each answer with its prompt 256 tokens, so that
# neither side pads; two ranks of one thread each, no activation checkpointing.
#
#   bench/e2e/dpo.sh MODEL_FOLDER PEER_PYTHON fp32|bf16 [options of in_turns.py: --rounds 3 --steps 5 --out FILE]
#
# `tessera init-model bench/e2e/llama_120m FOLDER` makes a model; the tokenizer is tests/data/tiny_chat's, a token a byte. Nothing is cached
# between runs. PEER_PYTHON is a Python with bench/peers/requirements.txt. TESSERA names another program than build/release/tessera.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 python=$2 precision=$3
shift 3
bf16=$([ "$precision" = bf16 ] && echo true || echo false)
tessera=${TESSERA:-$here/../../build/release/tessera}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false ACCELERATE_USE_CPU=true

mkdir "$work/model"
for file in "$model"/*; do ln -s "$(realpath "$file")" "$work/model/"; done
rm -f "$work/model"/tokenizer* "$work/model/chat_template.jinja"
cp "$here"/../../tests/data/tiny_chat/tokenizer*.json "$work/model/"
"$python" - "$work/pairs.jsonl" <<'EOF'
import json, random, sys
random.seed(1)
letters = lambda count: "".join(random.choice("abcdefghij ") for _ in range(count))
with open(sys.argv[1], "w") as f:
    for _ in range(256):  # and the end-of-sequence token
        f.write(json.dumps({"prompt": letters(127) + ":", "chosen": "A" + letters(126), "rejected": "B" + letters(126)}) + "\n")
EOF

cat >"$work/ours.sh" <<EOF
rm -rf '$work/cache' '$work/out'
'$tessera' launch --use_cpu --use_fsdp --num_processes 2 dpo --model_name_or_path '$work/model' --dataset_name '$work/pairs.jsonl' \
    --use_peft_lora true --lora_r 8 --lora_alpha 16 --lora_dropout 0 --lora_target_modules all-linear --gradient_checkpointing false \
    --per_device_train_batch_size 2 --learning_rate 1e-4 --max_steps \$1 --logging_steps 1 --save_strategy no --disable_tqdm true \
    --report_to none --bf16 $bf16 --output_dir '$work/out' --dataset_cache_dir '$work/cache' && cp '$work/out/metrics.jsonl' "\$2"
EOF
theirs="'$(dirname "$python")/torchrun' --nproc_per_node 2 '$here/../peers/dpo.py' --model '$work/model' --data '$work/pairs.jsonl' --precision $precision --steps {steps} --out {metrics}"
"$here/in_turns.py" --run "tessera=bash '$work/ours.sh' {steps} {metrics}" --run "trl=$theirs" --rows 8 --rows_tokens 256 "$@"
