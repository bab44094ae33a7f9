#!/usr/bin/env bash
# T5 fine-tuning beside torch FSDP1 and FSDP2, in turns: fp32, two ranks of one thread each.
#
#   bench/e2e/t5_small.sh MODEL_FOLDER SENTENCES_FILE PEER_PYTHON KIND [options of in_turns.py: --rounds 3 --steps 20 --out FILE]
#
# KIND: lora or full. PEER_PYTHON is a Python with bench/peers/requirements.txt. TESSERA names another program than build/release/tessera.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 data=$2 python=$3 kind=$4
shift 4
tessera=${TESSERA:-$here/../../build/release/tessera}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

lora=true full=
[ "$kind" = full ] && lora=false full=--full
peer="'$(dirname "$python")/torchrun' --nproc_per_node 2 '$here/../peers/t5_seq2seq.py' --model '$model' --data '$data' --max_steps {steps} --out {metrics} $full"
ours="'$tessera' launch --config_file '$here/fsdp_two_ranks.yaml' seq2seq --model_name_or_path '$model' --dataset_path '$data'
    --per_device_train_batch_size 8 --max_length 64 --max_target_length 2 --pad_to_max_length true --max_steps {steps} --lora_dropout 0
    --use_peft_lora $lora --logging_steps 1 --do_eval false --save_model false --disable_tqdm true --overwrite_output_dir true
    --output_dir '$results/out' --metrics_file {metrics}"

"$here/in_turns.py" --run "tessera=$ours" --run "fsdp1=$peer --api fsdp1" --run "fsdp2=$peer --api fsdp2" "$@"
