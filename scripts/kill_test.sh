#!/usr/bin/env bash
# Kills a run at random moments (steps, saves, resumes) until it has been killed N times, the launcher and one of the ranks in turns,
# and looks each time whether anything was lost: every checkpoint-N is whole, the next run goes on from the newest one, and each run that comes to its
# end has the weights of a run that was never killed, bit for bit. A kill counts when the run says that it died of it.
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
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
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

# The variable $2 of the process $1, as it was when its program started; nothing where it has none or has ended.
variable_of() { { tr '\0' '\n' <"/proc/$1/environ" | sed -n "s/^$2=//p"; } 2>/dev/null || true; }

# The ranks among the children of the launcher $1, by what it gave them. (Its keeper is a child, too.)
ranks_of() {
    local child
    for child in $(pgrep -P "$1" || true); do
        if [ "$(variable_of "$child" TORCHELASTIC_RUN_ID)" = "tessera-$1" ]; then echo "$child"; fi
    done
}

# Sets victim, and rank where that is one. A launcher that has just started has no ranks for a moment; one that has ended has none any more.
choose_victim() { # KIND
    local ranks=()
    victim=$pid rank=
    if [ "$1" = launcher ]; then return; fi
    while [ ${#ranks[@]} -lt 2 ] && kill -0 "$pid" 2>/dev/null; do mapfile -t ranks < <(ranks_of "$pid"); done
    [ ${#ranks[@]} -gt 0 ] || return 0
    victim=${ranks[RANDOM % ${#ranks[@]}]}
    rank=$(variable_of "$victim" RANK)
}

say "a run that is not killed"
start=$(date +%s%N)
(train "$work/whole" "$@") >"$work/whole.log" 2>&1 || fail "the run failed" "$(tail -n 5 "$work/whole.log")"
# Moments from before the first step to after the last save, in milliseconds.
span=$((($(date +%s%N) - start) / 1000000 * 11 / 10))

declare -A killed=([launcher]=0 [rank]=0)
ends=0 torn=0 done_kills=0
while [ "$done_kills" -lt "$kills" ]; do
    flags=() kind=launcher
    if [ $((done_kills % 2)) -eq 0 ]; then kind=rank; fi
    if compgen -G "$work/out/checkpoint-*" >/dev/null; then flags=(--resume_from_checkpoint true); fi
    (train "$work/out" "${flags[@]}" "$@") >"$work/run.log" 2>&1 &
    pid=$!
    sleep "$(awk -v r=$RANDOM -v s=$span 'BEGIN { printf "%.3f", r / 32768 * s / 1000 }')"
    choose_victim "$kind"
    if [ "$kind" = launcher ] || [ -n "$rank" ]; then kill -KILL "$victim" 2>/dev/null || true; fi
    code=0
    wait "$pid" 2>/dev/null || code=$?
    pid=
    if [ "$code" -eq 0 ]; then # it had ended, or all but
        cmp "$work/whole/model.safetensors" "$work/out/model.safetensors" || fail "the weights differ after $done_kills kills"
        ends=$((ends + 1))
        rm -rf "$work/out"
        continue
    fi
    [ "$code" -eq 137 ] || fail "a run ended with $code after $done_kills kills, the last of a $kind" "$(tail -n 5 "$work/run.log")"
    if [ "$kind" = rank ]; then
        grep -q "rank $rank failed with signal 9" "$work/run.log" ||
            fail "rank $rank (process $victim) was meant to be killed, and the launcher does not say that it was" "$(tail -n 5 "$work/run.log")"
    elif grep -q "failed with signal 9" "$work/run.log"; then
        fail "the launcher was meant to be killed, and a rank was" "$(tail -n 5 "$work/run.log")"
    fi
    killed[$kind]=$((killed[$kind] + 1)) done_kills=$((done_kills + 1))
    if compgen -G "$work/out/.partial-checkpoint-*" >/dev/null; then torn=$((torn + 1)); fi
    if [ $((done_kills % 25)) -eq 0 ]; then say "$done_kills kills, nothing lost so far"; fi
    for folder in "$work"/out/checkpoint-*; do
        [ -d "$folder" ] || continue
        "$tessera" inspect "$folder" >"$work/inspect.log" || fail "$folder is damaged" "$(cat "$work/inspect.log")"
    done
done
[ "${killed[launcher]}" -gt 0 ] && [ "${killed[rank]}" -gt 0 ] ||
    fail "only one kind was killed: ${killed[launcher]} launchers, ${killed[rank]} ranks" "ask for 2 kills at least"
say "$done_kills kills (launcher ${killed[launcher]}, ranks ${killed[rank]}), $torn of them during a save, $ends runs came to their end with the right weights: nothing was lost"
