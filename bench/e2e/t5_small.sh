#!/usr/bin/env bash
# T5 fine-tuning beside torch FSDP1 and FSDP2, in turns: LoRA and all weights, fp32, two ranks of one thread each.
#
#   bench/e2e/t5_small.sh MODEL_FOLDER SENTENCES_FILE PEER_PYTHON [options of in_turns.py: --rounds 3 --steps 20 --out FILE]
#
# PEER_PYTHON is a Python with bench/peers/requirements.txt. TESSERA names another program than build/release/tessera.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 data=$2 python=$3
shift 3
tessera=${TESSERA:-$here/../../build/release/tessera}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

peer="'$(dirname "$python")/torchrun' --nproc_per_node 2 '$here/../peers/in_turns.py' --model '$model' --data '$data' --max_steps {steps} --out {metrics}"
ours="'$tessera' launch --config_file '$here/fsdp_two_ranks.yaml' seq2seq --model_name_or_path '$model' --dataset_path '$data'
    --per_device_train_batch_size 8 --max_length 64 --max_target_length 2 --pad_to_max_length true --max_steps {steps} --lora_dropout 0
    --logging_steps 1 --do_eval false --save_model false --disable_tqdm true --overwrite_output_dir true --output_dir '$results/out'
    --metrics_file {metrics}"

"$here/in_turns.py" \
    --run "tessera-lora=$ours" --run "fsdp1-lora=$peer --api fsdp1" --run "fsdp2-lora=$peer --api fsdp2" \
    --run "tessera-full=$ours --use_peft_lora false" --run "fsdp1-full=$peer --api fsdp1 --full" --run "fsdp2-full=$peer --api fsdp2 --full" \
    "$@"
