#!/usr/bin/env bash
# `tessera sft` beside the same run of TRL, PEFT and Accelerate, in turns: from the command to the first step, time of a step, memory.
# LoRA on all linear layers, packed rows of 256 tokens, two ranks of one thread each.
#
#   bench/e2e/sft.sh MODEL_FOLDER DATA_FOLDER PEER_PYTHON fp32|bf16 [options of in_turns.py: --rounds 3 --steps 5 --out FILE]
#
# DATA_FOLDER has train.jsonl with messages (examples/demo/chats). Nothing is cached between runs. PEER_PYTHON is a Python with
# bench/peers/requirements.txt. TESSERA names another program than build/release/tessera.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 data=$2 python=$3 precision=$4
shift 4
bf16=$([ "$precision" = bf16 ] && echo true || echo false)
tessera=${TESSERA:-$here/../../build/release/tessera}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false ACCELERATE_USE_CPU=true

# The same chat template for both: chatml, without new tokens.
mkdir "$work/model"
for file in "$model"/*; do ln -s "$(realpath "$file")" "$work/model/"; done
rm -f "$work/model/tokenizer_config.json" "$work/model/chat_template.jinja"
"$python" - "$model/tokenizer_config.json" "$work/model/tokenizer_config.json" <<'EOF'
import json, sys
config = json.load(open(sys.argv[1]))
config["chat_template"] = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
                           "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
json.dump(config, open(sys.argv[2], "w"))
EOF

cat >"$work/ours.sh" <<EOF
rm -rf '$work/cache' '$work/out'
'$tessera' launch --use_cpu --use_fsdp --num_processes 2 sft --model_name_or_path '$work/model' --dataset_name '$data' --eval_strategy no \
    --packing true --max_seq_length 256 --use_peft_lora true --lora_r 8 --lora_alpha 16 --lora_dropout 0 --lora_target_modules all-linear \
    --per_device_train_batch_size 2 --learning_rate 1e-4 --max_steps \$1 --logging_steps 1 --save_strategy no --disable_tqdm true \
    --report_to none --bf16 $bf16 --output_dir '$work/out' --dataset_cache_dir '$work/cache' && cp '$work/out/metrics.jsonl' "\$2"
EOF
theirs="'$(dirname "$python")/torchrun' --nproc_per_node 2 '$here/../peers/trl_sft.py' --model '$work/model' --data '$data/train.jsonl' --precision $precision --steps {steps} --out {metrics}"
"$here/in_turns.py" --run "tessera=bash '$work/ours.sh' {steps} {metrics}" --run "trl=$theirs" --rows 4 --rows_tokens 256 "$@"
