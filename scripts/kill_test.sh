#!/usr/bin/env bash
# Kills a run at random moments (steps, saves, resumes) until it has been killed N times, the launcher or one of the ranks,
# and looks each time whether anything was lost: every checkpoint-N is whole, the next run goes on from the newest one, and each run that comes to its
# end has the weights of a run that was never killed, bit for bit.
#   scripts/kill_test.sh [N=200] [SEED=1] [EXTRA FLAGS OF sft ...]
# Needs build/release (scripts/test.sh builds it) or TESSERA=path of the program.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
kills=${1:-200} seed=${2:-1}
shift $(($# < 2 ? $# : 2))
tessera=${TESSERA:-build/release/tessera}
[ -x "$tessera" ] || fail "$tessera is missing" "build it with scripts/test.sh, or set TESSERA"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=$seed
data=tests/data/tiny_chat

"$tessera" init-model "$data" "$work/model" >/dev/null
train() { # OUTPUT FLAGS...
    local out=$1
    shift
    exec "$tessera" launch --cpu --num_processes 2 sft --model_name_or_path "$work/model" --dataset_name "$data" \
        --dataset_cache_dir "$work/cache" --output_dir "$out" --max_seq_length 64 --print_model false --disable_tqdm \
        --learning_rate 1e-2 --max_steps 30 --save_steps 1 --save_total_limit 3 "$@"
}

say "a run that is not killed"
start=$(date +%s%N)
(train "$work/whole" "$@") >"$work/whole.log" 2>&1 || fail "the run failed" "$(tail -n 5 "$work/whole.log")"
# Moments from before the first step to after the last save, in milliseconds.
span=$((($(date +%s%N) - start) / 1000000 * 11 / 10))

done_kills=0 ends=0 torn=0
while [ "$done_kills" -lt "$kills" ]; do
    flags=()
    if compgen -G "$work/out/checkpoint-*" >/dev/null; then flags=(--resume_from_checkpoint true); fi
    (train "$work/out" "${flags[@]}" "$@") >"$work/run.log" 2>&1 &
    pid=$!
    sleep "$(awk -v r=$RANDOM -v s=$span 'BEGIN { printf "%.3f", r / 32768 * s / 1000 }')"
    mapfile -t victims < <(echo "$pid" && pgrep -P "$pid" -f tessera-worker)
    if kill -KILL "${victims[RANDOM % ${#victims[@]}]}" 2>/dev/null; then done_kills=$((done_kills + 1)); fi
    code=0
    wait "$pid" 2>/dev/null || code=$?
    if [ "$code" -eq 0 ]; then
        cmp "$work/whole/model.safetensors" "$work/out/model.safetensors" || fail "the weights differ after $done_kills kills"
        ends=$((ends + 1))
        rm -rf "$work/out"
        continue
    fi
    [ "$code" -eq 137 ] || fail "a run ended with $code after $done_kills kills" "$(tail -n 5 "$work/run.log")"
    if compgen -G "$work/out/.partial-checkpoint-*" >/dev/null; then torn=$((torn + 1)); fi
    if [ $((done_kills % 25)) -eq 0 ]; then say "$done_kills kills, nothing lost so far"; fi
    for folder in "$work"/out/checkpoint-*; do
        [ -d "$folder" ] || continue
        "$tessera" inspect "$folder" >"$work/inspect.log" || fail "$folder is damaged" "$(cat "$work/inspect.log")"
    done
done
say "$done_kills kills, $torn of them during a save, $ends runs came to their end with the right weights: nothing was lost"
