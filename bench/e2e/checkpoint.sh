#!/usr/bin/env bash
# Saving and loading beside torch.save and torch.distributed.checkpoint, in turns, two ranks of one thread each.
#
#   bench/e2e/checkpoint.sh MODEL_FOLDER PEER_PYTHON FOLDER [ROUNDS=3]
#
# FOLDER: on the disk to measure (it is emptied); in a file system in memory the numbers show what the programs themselves cost.
# `tessera init-model bench/e2e/llama_120m MODEL_FOLDER` makes the model that docs/benchmarks.md speaks of. PEER_PYTHON is a Python with
# bench/peers/requirements.txt. REPEAT: saves in a process (3). TESSERA names another program than build/release/tessera.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 python=$2 folder=$3/tessera_checkpoint_bench rounds=${4:-3}
tessera=${TESSERA:-$here/../../build/release/tessera}
results=$(mktemp -d)
trap 'rm -rf "$results" "$folder"' EXIT
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1

run() { # NAME COMMAND...
    local name=$1 log=$results/log
    shift
    rm -rf "$folder"
    "$@" --model "$model" --folder "$folder" --repeat "${REPEAT:-3}" --out "$results/$name.jsonl" >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        echo "error: $name failed" >&2
        exit 1
    }
}
disk() { # MiB/s of the disk itself, past the page cache; nothing where files lie in memory
    mkdir -p "$folder"
    cp "$model"/model*.safetensors "$folder/"
    sync "$folder"/*
    for file in "$folder"/*.safetensors; do
        local begin=$EPOCHREALTIME
        dd if="$file" of=/dev/null bs=4M iflag=direct status=none 2>/dev/null || break
        echo "$(stat -c %s "$file") $begin $EPOCHREALTIME" | awk '{ print $1 / 1048576 / ($3 - $2) }' >>"$results/disk"
    done
    rm -rf "$folder"
}
ours=("$tessera" launch --use_cpu --num_processes 2 "$(dirname "$tessera")/bench/checkpoint_bench")
peer=("$(dirname "$python")/torchrun" --nproc_per_node 2 "$here/../peers/checkpoint.py")
for ((round = 1; round <= rounds; ++round)); do
    for kind in full state background; do run "tessera-$kind" "${ours[@]}" --kind $kind; done
    for kind in torch_full dcp_full state background; do disk; run "torch-$kind" "${peer[@]}" --kind $kind; done
    echo "round $round of $rounds" >&2
done
"$here/checkpoint_table.py" "$results"
