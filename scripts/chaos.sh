#!/usr/bin/env bash
# Hurts a run N times, at random moments, and looks each time whether anything was lost or left behind.
#   scripts/chaos.sh [N=60] [SEED=1] [KINDS=all, or a,b,c] [EXTRA FLAGS OF sft ...]
# Kinds
#   rank, launcher    SIGKILL of one rank, or of the launcher
#   fault             SIGSEGV of a rank
#   term, int, hup    a service manager, Ctrl-C, a terminal that closes: the launcher is asked to end
#   stop              a rank stands still for a second (SIGSTOP), then goes on
#   large             no file may grow over so many kilobytes (as on a full disk): saves fail
#   flip, cut, gone   one bit, the end or the whole of one file of the newest checkpoint, while no run goes on
#   torn              the remains of a save that a kill interrupted lie in the folder
#   export            SIGKILL of an export of the newest checkpoint
# After each: no process and no shared memory is left; the error says what happened; every checkpoint that nobody hurt is
# whole, one that was hurt is found out and left; the next run goes on, and a run that comes to its end has the weights of a run that
# was never hurt, bit for bit, and leaves no temporary files. An injury counts when the run shows that it felt it.
# Needs build/release (scripts/test.sh builds it) or TESSERA=path of the program.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
all=rank,launcher,fault,term,int,hup,stop,large,flip,cut,gone,torn,export
wanted=${1:-60} seed=${2:-1} kinds=${3:-all}
shift $(($# < 3 ? $# : 3))
extra=("$@")
if [ "$kinds" = all ]; then kinds=$all; fi
IFS=, read -ra kinds <<<"$kinds"
for kind in "${kinds[@]}"; do case ",$all," in *",$kind,"*) ;; *) fail "there is no kind '$kind'" "kinds: $all" ;; esac; done
tessera=${TESSERA:-build/release/tessera}
[ -x "$tessera" ] || fail "$tessera is missing" "build it with scripts/test.sh, or set TESSERA"
work=$(mktemp -d)
out=$work/out
pid=
export TESSERA_CHAOS=$work # by which its processes are known
processes() { # that are tessera's
    local found
    for found in $(grep -lz "^TESSERA_CHAOS=$work\$" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true); do
        if grep -q '^tessera' "/proc/$found/comm" 2>/dev/null; then echo "$found"; fi
    done
}
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
RANDOM=$seed
data=tests/data/tiny_chat

"$tessera" init-model "$data" "$work/model" >/dev/null
train() { # OUTPUT FLAGS...
    local to=$1
    shift
    exec "$tessera" launch --cpu --num_processes 2 sft --model_name_or_path "$work/model" --dataset_name "$data" \
        --dataset_cache_dir "$work/cache" --output_dir "$to" --max_seq_length 64 --print_model false --disable_tqdm \
        --learning_rate 1e-2 --max_steps 30 --save_steps 1 --save_total_limit 3 "${extra[@]}" "$@"
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

# Sets victim and rank. A launcher that has just started has no ranks for a moment; one that has ended has none any more.
choose_rank() {
    local ranks=()
    victim= rank=
    while [ ${#ranks[@]} -lt 2 ] && kill -0 "$pid" 2>/dev/null; do mapfile -t ranks < <(ranks_of "$pid"); done
    [ ${#ranks[@]} -gt 0 ] || return 0
    victim=${ranks[RANDOM % ${#ranks[@]}]}
    rank=$(variable_of "$victim" RANK)
}
hit() { [ -z "$2" ] || kill -"$1" "$2" 2>/dev/null || true; } # SIGNAL PROCESS

newest() { find "$out" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | sort -V | tail -n 1 || true; }
says() { grep -q -- "$1" "$work/run.log"; }
blame() { fail "$kind, injury $((done_injuries + 1)) (seed $seed): $1" "$(tail -n 8 "$work/run.log")"; }
pause() { sleep "$(awk -v r=$RANDOM -v s="$1" 'BEGIN { printf "%.3f", r / 32768 * s / 1000 }')"; }

# What a process could leave outside of the work folder. (Its sockets have no files, and go with it.)
outside() { find /dev/shm -maxdepth 1 -mindepth 1 -name '*tessera*' 2>/dev/null | sort; }
nothing_left() {
    local tries=0
    while [ -n "$(processes)" ] || [ "$(outside)" != "$before" ]; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || blame "left: processes $(processes | tr '\n' ' '), outside $(diff <(echo "$before") <(outside) || true)"
        sleep 0.1
    done
}
all_whole() {
    local folder
    for folder in "$out"/checkpoint-*; do
        [ -d "$folder" ] || continue
        "$tessera" inspect "$folder" >"$work/inspect.log" 2>&1 || blame "$folder is damaged: $(cat "$work/inspect.log")"
    done
}

# A run, new or gone on with; it is hurt by the function $1 at a random moment. Sets code, and pid to nothing.
run_and() {
    local flags=()
    if [ -n "$(newest)" ]; then flags=(--resume_from_checkpoint true); fi
    (train "$out" "${flags[@]}") >"$work/run.log" 2>&1 &
    pid=$!
    pause "$span"
    "$1"
    code=0
    wait "$pid" 2>/dev/null || code=$?
    pid=
}
kill_rank() { choose_rank && hit KILL "$victim"; }
fault_rank() { choose_rank && hit SEGV "$victim"; }
kill_launcher() { hit KILL "$pid"; }
end_launcher() { hit "$signal" "$pid"; }
stop_rank() {
    choose_rank
    hit STOP "$victim"
    sleep 1
    hit CONT "$victim"
}
nothing() { :; }
compare_end() {
    cmp "$work/whole/model.safetensors" "$out/model.safetensors" >>"$work/run.log" 2>&1 || blame "the weights differ"
    [ -z "$(find "$out" -name '.*' ! -name .tessera.lock ! -path "$out")" ] || blame "left behind: $(find "$out" -name '.*')"
    ends=$((ends + 1))
    rm -rf "$out"
}

# One injury. Sets felt when the run shows that it was hurt.
injure() {
    local folder files file
    felt=
    case $kind in
        rank | fault)
            run_and "$([ "$kind" = rank ] && echo kill_rank || echo fault_rank)"
            [ "$code" -ne 0 ] || return 0
            local number=9
            if [ "$kind" = fault ]; then number=11; fi
            [ "$code" -eq $((128 + number)) ] || blame "exit code $code"
            says "rank $rank failed with signal $number" || blame "rank $rank is not named"
            felt=1
            ;;
        launcher)
            run_and kill_launcher
            [ "$code" -ne 0 ] || return 0
            [ "$code" -eq 137 ] || blame "exit code $code"
            ! says "failed with signal" || blame "a rank was killed, not the launcher"
            felt=1
            ;;
        term | int | hup)
            signal=${kind^^}
            run_and end_launcher
            [ "$code" -ne 0 ] || return 0
            [ "$code" -eq $((128 + $(kill -l "$signal"))) ] || blame "exit code $code"
            # It had begun: the step in which the signal came is saved. (It may have come while the ranks started.)
            if says "Running training"; then says "continue with --resume_from_checkpoint true" || says "adapter saved\|model saved\|saved in" || blame "no checkpoint was written"; fi
            felt=1
            ;;
        stop)
            run_and stop_rank
            [ "$code" -eq 0 ] || blame "exit code $code"
            if [ -n "$victim" ]; then felt=1; fi
            ;;
        large) # every file but the last of a save fits, or none: in 1 KiB
            local limit=$((RANDOM % (size + size / 4) + 1))
            (ulimit -f "$limit" && run_and nothing && exit "$code") || code=$?
            [ "$code" -ne 0 ] || return 0
            [ "$code" -lt 128 ] || blame "exit code $code with at most $limit KiB a file"
            says "File too large\|file size\|EFBIG" || blame "the reason is not named (limit $limit KiB)"
            felt=1
            ;;
        flip | cut | gone)
            folder=$(newest)
            if [ -z "$folder" ]; then run_and kill_rank && folder=$(newest); fi
            [ -n "$folder" ] || return 0
            mapfile -t files < <(find "$folder" -type f -size +0 | sort)
            file=${files[RANDOM % ${#files[@]}]}
            local bytes at
            bytes=$(stat -c %s "$file")
            at=$(((RANDOM * 32768 + RANDOM) % bytes))
            case $kind in
                flip) printf "\\x$(printf %02x $(($(od -An -tu1 -j "$at" -N 1 "$file") ^ (1 << RANDOM % 8))))" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none ;;
                cut) truncate -s "$at" "$file" ;;
                gone) rm "$file" ;;
            esac
            if "$tessera" inspect "$folder" >"$work/run.log" 2>&1; then blame "inspect finds nothing wrong with $file ($kind at byte $at of $bytes)"; fi
            local others
            others=$(find "$out" -maxdepth 1 -name 'checkpoint-*' | wc -l)
            run_and nothing
            if [ "$others" -gt 1 ]; then
                [ "$code" -eq 0 ] || blame "the run did not go on from the checkpoint before ($code)"
                says "$(basename "$folder")" || blame "the damaged checkpoint is not named"
            elif [ "$code" -eq 0 ]; then
                blame "the run went on from a damaged checkpoint"
            else
                says "no complete checkpoint" || blame "the error does not say that there is no whole checkpoint"
                rm -rf "$out"
            fi
            felt=1
            ;;
        torn)
            folder=$(newest)
            [ -n "$folder" ] || { run_and kill_rank && folder=$(newest); }
            [ -n "$folder" ] || return 0
            cp -r "$folder" "$out/.partial-checkpoint-29"
            rm -f "$out/.partial-checkpoint-29/manifest.json"
            run_and nothing
            [ "$code" -eq 0 ] || blame "exit code $code"
            felt=1
            ;;
        export)
            folder=$(newest)
            [ -n "$folder" ] || { run_and kill_rank && folder=$(newest); }
            [ -n "$folder" ] || return 0
            rm -rf "$work/exported"
            ("$tessera" export "$folder" "$work/exported" >"$work/run.log" 2>&1) &
            pid=$!
            pause "$export_span"
            hit KILL "$pid"
            code=0
            wait "$pid" 2>/dev/null || code=$?
            pid=
            if [ "$code" -ne 0 ]; then felt=1; fi
            # A folder that has its config and its weights under their names is whole.
            if [ -f "$work/exported/model.safetensors" ]; then
                "$tessera" inspect "$work/exported" >"$work/inspect.log" 2>&1 || blame "a half-written export: $(cat "$work/inspect.log")"
            fi
            "$tessera" export "$folder" "$work/exported" --overwrite_output_dir >"$work/run.log" 2>&1 || blame "the export cannot be repeated"
            code=1
            ;;
    esac
}

before=$(outside)
say "a run that is not hurt"
start=$(date +%s%N)
(train "$work/whole") >"$work/whole.log" 2>&1 || fail "the run failed" "$(tail -n 5 "$work/whole.log")"
# Moments from before the first step to after the last save, in milliseconds.
span=$((($(date +%s%N) - start) / 1000000 * 11 / 10))
size=$(($(find "$work/whole" -type f -printf '%s\n' | sort -n | tail -n 1) / 1024))
start=$(date +%s%N)
"$tessera" export "$(find "$work/whole" -name 'checkpoint-*' | head -n 1)" "$work/exported" >/dev/null
export_span=$((($(date +%s%N) - start) / 1000000))

declare -A felt_of
for kind in "${kinds[@]}"; do felt_of[$kind]=0; done
ends=0 torn=0 done_injuries=0 turn=0
while [ "$done_injuries" -lt "$wanted" ]; do
    kind=${kinds[turn % ${#kinds[@]}]}
    turn=$((turn + 1))
    [ "$turn" -le $((wanted * 20)) ] || fail "the runs come to their ends before they are hurt: $done_injuries of $wanted injuries in $turn runs"
    injure
    nothing_left
    if compgen -G "$out/.partial-checkpoint-*" >/dev/null; then torn=$((torn + 1)); fi
    if [ "$code" -eq 0 ] && [ -f "$out/model.safetensors" ]; then compare_end; fi
    all_whole
    [ -n "$felt" ] || continue
    felt_of[$kind]=$((felt_of[$kind] + 1)) done_injuries=$((done_injuries + 1))
    if [ $((done_injuries % 25)) -eq 0 ]; then say "$done_injuries injuries, nothing lost so far"; fi
done
for kind in "${kinds[@]}"; do
    [ "${felt_of[$kind]}" -gt 0 ] || [ "$wanted" -lt ${#kinds[@]} ] || fail "no run felt '$kind'"
    printf '   %-10s %s\n' "$kind" "${felt_of[$kind]}"
done
say "$done_injuries injuries, $torn of them during a save, $ends runs came to their end with the right weights: nothing was lost, nothing was left"
