#!/usr/bin/env bash
# Hurts a run N times, at random moments, and looks each time whether anything was lost or left behind.
#   scripts/chaos.sh [N=60] [SEED=1] [KINDS=all, or a,b,c] [EXTRA FLAGS OF sft ...]
# Kinds
#   rank, launcher    SIGKILL of one rank, or of the launcher
#   fault, launcherfault  SIGSEGV of a rank, of the launcher
#   term, int, hup    a service manager, Ctrl-C, a terminal that closes: the launcher is asked to end
#   rankterm          SIGTERM of one rank
#   stop, launcherstop  a rank, the launcher stands still for a second (SIGSTOP), then goes on
#   hang              a rank stands still for longer than the others wait (TESSERA_COMM_TIMEOUT_S)
#   slow              a rank stands still most of the time, for two seconds
#   large             no file may grow over so many kilobytes: saves fail
#   full              the folder lies on a disk that has so many kilobytes left (a small tmpfs; root only)
#   readonly          nobody may write into the folder any more (as root the run is another user's)
#   clock             the time of day jumps, forwards and back by up to a day, all the time (a shim that cc builds)
#   memory            the processes may not have all the memory that they need (a limit on addresses)
#   host              of two hosts with a rank each (network namespaces; root only) one is lost: its cable, then all its processes
#   flip, cut, gone   one bit, the end or the whole of one file of the newest checkpoint, while no run goes on
#   zero, swap        512 bytes of it were not written, or in another place (a disk that lost power)
#   stale             it is the same file of an older checkpoint
#   torn              the remains of a save that a kill interrupted lie in the folder
#   export            an export of the newest checkpoint is killed, terminated, crashes or stands still for a moment
# After each: no process and no shared memory is left; the error says what happened; every checkpoint that nobody hurt is
# whole, one that was hurt is found out and left; the next run goes on, and a run that comes to its end has the weights of a run that
# was never hurt, bit for bit, and leaves no temporary files. An injury counts when the run shows that it felt it.
# Runs evaluate and save, so that these are interrupted, too; at its end the script says what was going on when processes were hurt.
# A kind for which this machine lacks something is left out, which is said.
# Needs build/release (scripts/test.sh builds it) or TESSERA=path of the program.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
all=rank,launcher,fault,launcherfault,term,int,hup,rankterm,stop,launcherstop,hang,slow,large,full,readonly,clock,memory,host,flip,cut,gone,zero,swap,stale,torn,export
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
export TMPDIR=$work/tmp
mkdir "$TMPDIR"
processes() { # that are tessera's
    local found
    for found in $(grep -lz "^TESSERA_CHAOS=$work\$" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true); do
        if grep -q '^tessera' "/proc/$found/comm" 2>/dev/null; then echo "$found"; fi
    done
}
mounted=
spaces= # network namespaces, "${spaces}0" and "${spaces}1", and the switch's, "${spaces}s"
PATH=$PATH:/usr/sbin:/sbin
remove_spaces() { for space in 0 1 s; do ip netns del "$spaces$space" 2>/dev/null || true; done; }
trap '[ -z "$spaces" ] || remove_spaces; [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true; [ -z "$mounted" ] || umount -l "$mounted"; rm -rf "$work"' EXIT
RANDOM=$seed
data=tests/data/tiny_chat

"$tessera" init-model "$data" "$work/model" >/dev/null
as_user=()   # another user, where that is needed
host=()      # the command that enters a host's network, where there are two
machines=()  # the launcher's flags then
preloaded='' # a library that stands before others
train() { # OUTPUT FLAGS...
    local to=$1
    shift
    if [ -n "$preloaded" ]; then export LD_PRELOAD=$preloaded; fi
    exec "${as_user[@]}" "${host[@]}" "$tessera" launch --cpu --num_processes 2 "${machines[@]}" sft --model_name_or_path "$work/model" --dataset_name "$data" \
        --dataset_cache_dir "$work/cache" --output_dir "$to" --max_seq_length 64 --print_model false --disable_tqdm \
        --learning_rate 1e-2 --max_steps 30 --save_steps 1 --save_total_limit 3 \
        --logging_steps 1 --eval_strategy steps --eval_steps 6 "${extra[@]}" "$@"
}

name_of() { cat "/proc/$1/comm" 2>/dev/null || true; }

# The ranks among the children of the launcher $1: processes that are called tessera:NUMBER. (Its keeper is a child, too.)
ranks_of() {
    local child
    for child in $(pgrep -P "$1" || true); do
        case $(name_of "$child") in tessera:*) echo "$child" ;; esac
    done
}

# Sets victim and rank. A launcher that has just started has no ranks for a moment; one that has ended has none any more.
choose_rank() {
    local ranks=()
    victim= rank=
    while [ ${#ranks[@]} -lt 2 ] && kill -0 "$pid" 2>/dev/null; do mapfile -t ranks < <(ranks_of "$pid"); done
    [ ${#ranks[@]} -gt 0 ] || return 0
    victim=${ranks[RANDOM % ${#ranks[@]}]}
    rank=$(name_of "$victim")
    rank=${rank#tessera:}
}
# What the run is at, as far as it can be seen, when a process is hurt.
declare -A moments
note_moment() {
    local said moment=training
    said=$("$tessera" status "$out" 2>/dev/null || true)
    case $said in
        *"before the first step"* | "" | *"no run goes on"* | *"a run goes on"*) moment=start ;;
        *", evaluation"*) moment=evaluation ;;
        *", saving"*) moment=saving ;;
    esac
    moments[$moment]=$((${moments[$moment]:-0} + 1))
}
hit() { [ -z "$2" ] || kill -"$1" "$2" 2>/dev/null || true; } # SIGNAL PROCESS

newest() { find "$out" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | sort -V | tail -n 1 || true; }
says() { grep -q -- "$1" "$work/run.log"; }
blame() { fail "$kind, injury $((done_injuries + 1)) (seed $seed): $1" "$(tail -n 8 "$work/run.log")"; }
pause() { sleep "$(awk -v r=$RANDOM -v s="$1" 'BEGIN { printf "%.3f", r / 32768 * s / 1000 }')"; }

# What a process could leave elsewhere. (Its sockets and shared memory have no names on a disk, and go with it.)
outside() { { find /dev/shm -maxdepth 1 -mindepth 1 -name '*tessera*' 2>/dev/null && find "$TMPDIR" -mindepth 1; } | sort; }
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

# A run, new or gone on with, and the command $@ at a random moment of it. Sets code; pid is empty again.
run_and() {
    local flags=()
    if [ -n "$(newest)" ]; then flags=(--resume_from_checkpoint true); fi
    : >"$work/run.log" # or what the last run said is still there when this one's start is looked for
    (train "$out" "${flags[@]}") >"$work/run.log" 2>&1 &
    pid=$!
    case $1 in nothing | hang_rank) ;; *) pause "$span" ;; esac # these choose their moment themselves
    "$@"
    code=0
    wait "$pid" 2>/dev/null || code=$?
    pid=
}
hurt_rank() { note_moment && choose_rank && hit "$1" "$victim"; } # SIGNAL
hurt_launcher() { note_moment && hit "$1" "$pid"; }               # SIGNAL
stop_launcher() {
    hurt_launcher STOP
    sleep 1
    hit CONT "$pid"
}
stop_rank() {
    hurt_rank STOP
    sleep 1
    hit CONT "$victim"
}
hang_rank() { # once the ranks have met, which they may take minutes for
    while ! says "Running training" && kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    pause $((span / 3))
    hurt_rank STOP
}
slow_rank() {
    local i
    note_moment
    choose_rank
    for ((i = 0; i < 20; i++)); do
        hit STOP "$victim"
        sleep 0.09
        hit CONT "$victim"
        sleep 0.01
    done
}
forbid_writing() { chmod 555 "$out" 2>/dev/null || true; } # it may not be there yet

# Two hosts with a rank each, of which the second is lost once they train. Sets code, of the first host's launcher; pid is empty again.
run_and_lose_a_host() {
    local flags=() port=$((20000 + RANDOM % 10000)) other tries=0
    if [ -n "$(newest)" ]; then flags=(--resume_from_checkpoint true); fi
    export TESSERA_KEEPALIVE_S=2
    for machine in 1 0; do
        : >"$work/run$machine.log"
        host=(ip netns exec "$spaces$machine")
        machines=(--num_machines 2 --machine_rank "$machine" --main_process_ip 10.79.0.1 --main_process_port "$port")
        (train "$out" "${flags[@]}") >"$work/run$machine.log" 2>&1 &
        if [ "$machine" -eq 1 ]; then other=$!; else pid=$!; fi
    done
    host=() machines=()
    while ! grep -qs "Running training" "$work/run0.log" && kill -0 "$pid" 2>/dev/null && [ $tries -lt 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    pause $((span / 2))
    ip -n "${spaces}1" link set wire down
    kill -KILL "$other" 2>/dev/null || true
    wait "$other" 2>/dev/null || true
    code=0
    wait "$pid" 2>/dev/null || code=$?
    pid=
    unset TESSERA_KEEPALIVE_S
    ip -n "${spaces}1" link set wire up
    cat "$work/run1.log" "$work/run0.log" >"$work/run.log"
}

# What a kind needs of this machine. Sets why where that is missing.
can_hurt() { # KIND
    why=
    case $1 in
        full)
            if ! { mkdir -p "$work/disk" && mount -t tmpfs -o size=1m tessera-chaos "$work/disk" && umount "$work/disk"; } 2>/dev/null; then
                why="it needs to mount a tmpfs"
            fi
            ;;
        readonly)
            [ "$(id -u)" -ne 0 ] || setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$tessera" -a -r "$data/config.json" 2>/dev/null ||
                why="no other user may start $tessera and read $data (setpriv)"
            ;;
        host)
            spaces=tessera_chaos_$$_
            if ! { ip netns add "${spaces}s" && ip -n "${spaces}s" link add bridge type bridge && ip -n "${spaces}s" link set bridge up; } 2>/dev/null; then
                spaces= why="it needs to make network namespaces (root and iproute2)"
                return 1
            fi
            for space in 0 1; do
                ip netns add "$spaces$space"
                ip -n "$spaces$space" link add wire type veth peer name "port$space" netns "${spaces}s"
                ip -n "${spaces}s" link set "port$space" master bridge up
                ip -n "$spaces$space" addr add "10.79.0.$((space + 1))/24" dev wire
                ip -n "$spaces$space" link set wire up
                ip -n "$spaces$space" link set lo up
            done
            ;;
        hup)
            case $(trap -p HUP) in "trap -- '' "*) why="SIGHUP is ignored here (nohup)" ;; esac
            ;;
        clock)
            cat >"$work/clock.c" <<'CODE'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec*);
/* Another offset, up to a day both ways, in every tenth of a second. */
static long jump(void) {
    struct timespec t;
    real(CLOCK_MONOTONIC, &t);
    unsigned long x = (unsigned long)t.tv_sec * 10 + (unsigned long)t.tv_nsec / 100000000;
    x = (x ^ (x >> 3)) * 0x9E3779B97F4A7C15ul;
    return (long)((x >> 20) % 172800) - 86400;
}
int clock_gettime(clockid_t clock, struct timespec* t) {
    if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, t);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += jump();
    return failed;
}
int gettimeofday(struct timeval* restrict v, void* restrict zone) {
    (void)zone;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    v->tv_sec = t.tv_sec, v->tv_usec = t.tv_nsec / 1000;
    return 0;
}
time_t time(time_t* out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
CODE
            cc -shared -fPIC -O1 -o "$work/clock.so" "$work/clock.c" -ldl 2>/dev/null || why="no C compiler builds the shim"
            ;;
    esac
    [ -z "$why" ]
}

# Bytes of the file $1 from $2 on become those from $3 on of the file $4, 512 of them or up to the end.
patch() { dd if="$4" of="$1" bs=1 seek="$2" skip="$3" count=512 conv=notrunc status=none; }
nothing() { :; }
files_of() { (cd "$1" && find . -type f | sort); }
# Step and loss, as exactly as the run knows them, of the last time that each was logged: a step behind the newest checkpoint is taken again.
losses_of() {
    awk '
        function value(key) { return match($0, "\"" key "\": *[^,}]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "" }
        value("train_loss_exact") != "" { last["loss " value("step")] = value("train_loss_exact") }
        value("eval_loss") != "" { last["evaluation " value("step")] = value("eval_loss") }
        END { for (of in last) print of, last[of] }' "$1/metrics.jsonl" | sort
}
compare_end() {
    cmp "$work/whole/model.safetensors" "$out/model.safetensors" >>"$work/run.log" 2>&1 || blame "the weights differ"
    diff <(losses_of "$work/whole") <(losses_of "$out") >>"$work/run.log" || blame "the losses differ"
    diff <(files_of "$work/whole") <(files_of "$out") >>"$work/run.log" || blame "other files are there than in a run that was not hurt"
    ends=$((ends + 1))
    rm -rf "$out"
}

# Sets folder to the newest checkpoint; where there is none, to that of a run which is killed. Empty: four of them had saved none.
need_checkpoint() {
    local tries
    for tries in 1 2 3 4; do
        folder=$(newest)
        [ -z "$folder" ] || return 0
        run_and hurt_rank KILL
    done
    folder=$(newest)
}

# One injury. Sets felt when the run shows that it was hurt.
injure() {
    local folder files file
    felt=
    case $kind in
        rank | fault)
            local number=9
            if [ "$kind" = fault ]; then number=11; fi
            run_and hurt_rank "$number"
            [ "$code" -ne 0 ] || return 0
            [ "$code" -eq $((128 + number)) ] || blame "exit code $code"
            says "rank $rank failed with signal $number" || blame "rank $rank is not named"
            felt=1
            ;;
        launcher | launcherfault)
            local number=9
            if [ "$kind" = launcherfault ]; then number=11; fi
            run_and hurt_launcher "$number"
            [ "$code" -ne 0 ] || return 0
            [ "$code" -eq $((128 + number)) ] || blame "exit code $code"
            ! says "failed with signal" || blame "a rank was killed, not the launcher"
            felt=1
            ;;
        term | int | hup | rankterm)
            local signal=${kind^^} whom=hurt_launcher
            if [ "$kind" = rankterm ]; then signal=TERM whom=hurt_rank; fi
            run_and $whom "$signal"
            [ "$code" -ne 0 ] || return 0
            [ "$code" -eq $((128 + $(kill -l "$signal"))) ] || blame "exit code $code"
            # It had begun: the step in which the signal came is saved. (It may have come while the ranks started.)
            if says "Running training"; then says "continue with --resume_from_checkpoint true" || says "adapter saved\|model saved\|saved in" || blame "no checkpoint was written"; fi
            felt=1
            ;;
        stop | slow)
            run_and "${kind}_rank"
            [ "$code" -eq 0 ] || blame "exit code $code"
            if [ -n "$victim" ]; then felt=1; fi
            ;;
        hang)
            export TESSERA_COMM_TIMEOUT_S=2
            run_and hang_rank
            unset TESSERA_COMM_TIMEOUT_S
            [ "$code" -ne 0 ] || return 0
            [ "$code" -eq 5 ] || blame "exit code $code"
            says "no progress for 2000 ms: rank $rank has " || blame "rank $rank is not named"
            felt=1
            ;;
        launcherstop)
            run_and stop_launcher
            [ "$code" -eq 0 ] || blame "exit code $code"
            felt=1
            ;;
        memory) # from a tenth of what a rank maps to a little more than that
            local limit=$((addresses * (RANDOM % 100 + 10) / 100))
            code=0
            (ulimit -v "$limit" && run_and nothing && exit "$code") || code=$?
            [ "$code" -ne 0 ] || return 0
            says "out of memory\|not enough memory\|no shared memory\|failed to map segment\|std::bad_alloc\|Resource temporarily unavailable\|Thread creation failed" || blame "exit code $code, and the reason is not named (limit $limit KiB)"
            felt=1
            ;;
        host)
            run_and_lose_a_host
            [ "$code" -ne 0 ] || return 0
            [ "$code" -lt 128 ] || blame "exit code $code"
            says "rank 1" || blame "the lost rank is not named"
            felt=1
            ;;
        large) # from 1 KiB to more than the largest file of a run
            local limit=$((RANDOM % (size + size / 4) + 1))
            code=0
            (ulimit -f "$limit" && run_and nothing && exit "$code") || code=$?
            [ "$code" -ne 0 ] || return 0
            [ "$code" -lt 128 ] || blame "exit code $code with at most $limit KiB a file"
            says "File too large\|file size\|EFBIG" || blame "the reason is not named (limit $limit KiB)"
            felt=1
            ;;
        full) # up to about two checkpoints more
            local room kept=$out
            room=$(($(du -sk "$out" 2>/dev/null | cut -f 1 || true) + RANDOM % (3 * size) + 64))
            mount -t tmpfs -o "size=${room}k" tessera-chaos "$work/disk"
            mounted=$work/disk
            out=$mounted/out
            if [ -d "$kept" ]; then cp -a "$kept" "$out"; fi
            run_and nothing
            # What lies there goes on from now on where there is room.
            rm -rf "$kept"
            if [ -d "$out" ]; then cp -a "$out" "$kept"; fi
            out=$kept
            umount "$mounted"
            mounted=
            [ "$code" -ne 0 ] || return 0
            [ "$code" -lt 128 ] || blame "exit code $code with a disk of $room KiB"
            says "No space left" || blame "the reason is not named (a disk of $room KiB)"
            felt=1
            ;;
        readonly)
            if [ "$(id -u)" -eq 0 ]; then
                chmod 755 "$work"
                mkdir -p "$work/cache"
                chown -R 65534:65534 "$work/cache"
                mkdir -p "$out"
                chown -R 65534:65534 "$out"
                as_user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
            fi
            run_and forbid_writing
            as_user=()
            chmod 755 "$out" 2>/dev/null || true
            [ "$(id -u)" -ne 0 ] || chown -R 0:0 "$work/cache" "$out"
            rmdir "$out" 2>/dev/null || true # nothing was written
            [ "$code" -ne 0 ] || return 0
            [ "$code" -lt 128 ] || blame "exit code $code with a folder that is read-only"
            says "Permission denied" || blame "the reason is not named"
            felt=1
            ;;
        clock)
            preloaded=$work/clock.so
            run_and nothing
            preloaded=
            [ "$code" -eq 0 ] || blame "exit code $code"
            felt=1
            ;;
        flip | cut | gone | zero | swap | stale)
            need_checkpoint
            [ -n "$folder" ] || return 0
            mapfile -t files < <(find "$folder" -type f -size +0 | sort)
            file=${files[RANDOM % ${#files[@]}]}
            local bytes at other
            bytes=$(stat -c %s "$file")
            at=$(((RANDOM * 32768 + RANDOM) % bytes))
            cp "$file" "$work/as_written"
            case $kind in
                zero) patch "$file" $((at / 512 * 512)) 0 /dev/zero && truncate -s "$bytes" "$file" ;;
                swap)
                    other=$(((RANDOM * 32768 + RANDOM) % bytes))
                    patch "$file" $((at / 512 * 512)) $((other / 512 * 512)) "$work/as_written"
                    patch "$file" $((other / 512 * 512)) $((at / 512 * 512)) "$work/as_written"
                    truncate -s "$bytes" "$file"
                    ;;
                stale)
                    other=$(find "$out" -maxdepth 1 -name 'checkpoint-*' ! -path "$folder" | sort -V | head -n 1)
                    if [ -f "$other/${file#"$folder"/}" ]; then cp "$other/${file#"$folder"/}" "$file"; fi
                    ;;
                flip) printf "\\x$(printf %02x $(($(od -An -tu1 -j "$at" -N 1 "$file") ^ (1 << RANDOM % 8))))" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none ;;
                cut) truncate -s "$at" "$file" ;;
                gone) rm "$file" ;;
            esac
            if cmp -s "$file" "$work/as_written"; then return 0; fi # the same bytes stood there
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
            need_checkpoint
            [ -n "$folder" ] || return 0
            cp -r "$folder" "$out/.partial-checkpoint-29"
            rm -f "$out/.partial-checkpoint-29/manifest.json"
            run_and nothing
            [ "$code" -eq 0 ] || blame "exit code $code"
            felt=1
            ;;
        export)
            need_checkpoint
            [ -n "$folder" ] || return 0
            local signals=(KILL TERM SEGV HUP STOP) signal
            signal=${signals[RANDOM % ${#signals[@]}]}
            rm -rf "$work/exported"
            ("$tessera" export "$folder" "$work/exported" >"$work/run.log" 2>&1) &
            pid=$!
            pause "$export_span"
            hit "$signal" "$pid"
            if [ "$signal" = STOP ]; then sleep 0.2 && hit CONT "$pid"; fi
            code=0
            wait "$pid" 2>/dev/null || code=$?
            pid=
            if [ "$signal" = STOP ]; then
                [ "$code" -eq 0 ] || blame "exit code $code"
                felt=1
            elif [ "$code" -ne 0 ]; then
                [ "$code" -eq $((128 + $(kill -l "$signal"))) ] || blame "exit code $code after SIG$signal"
                felt=1
            fi
            # A folder that has its config and its weights under their names is whole.
            if [ -f "$work/exported/model.safetensors" ]; then
                "$tessera" inspect "$work/exported" >"$work/inspect.log" 2>&1 || blame "a half-written export: $(cat "$work/inspect.log")"
            fi
            "$tessera" export "$folder" "$work/exported" --overwrite_output_dir >"$work/run.log" 2>&1 || blame "the export cannot be repeated"
            diff <(files_of "$work/whole_export") <(files_of "$work/exported") >>"$work/run.log" || blame "other files are there than in an export that was not hurt"
            code=1
            ;;
    esac
}

before=$(outside)
say "a run that is not hurt"
start=$(date +%s%N)
(train "$work/whole") >"$work/whole.log" 2>&1 &
pid=$!
addresses=0 # KiB that a rank maps at most
while kill -0 "$pid" 2>/dev/null; do
    for rank in $(ranks_of "$pid"); do
        peak=$(sed -n 's/^VmPeak:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$rank/status" 2>/dev/null || true)
        if [ "${peak:-0}" -gt "$addresses" ]; then addresses=$peak; fi
    done
    sleep 0.1
done
wait "$pid" || fail "the run failed" "$(tail -n 5 "$work/whole.log")"
pid=
reserved=$((1 << 30)) # KiB of addresses for the memory of steps, without which a rank can do (src/tensor/allocator.cc)
[ "$addresses" -le "$reserved" ] || addresses=$((addresses - reserved))
# Moments from before the first step to after the last save, in milliseconds.
span=$((($(date +%s%N) - start) / 1000000 * 11 / 10))
size=$(($(find "$work/whole" -type f -printf '%s\n' | sort -n | tail -n 1) / 1024))
start=$(date +%s%N)
"$tessera" export "$(find "$work/whole" -name 'checkpoint-*' | head -n 1)" "$work/whole_export" >/dev/null
export_span=$((($(date +%s%N) - start) / 1000000))

able=()
for kind in "${kinds[@]}"; do
    if can_hurt "$kind"; then able+=("$kind"); else say "$kind is left out: $why"; fi
done
kinds=("${able[@]}")
[ ${#kinds[@]} -gt 0 ] || fail "none of these kinds is possible here"
declare -A felt_of
for kind in "${kinds[@]}"; do felt_of[$kind]=0; done
ends=0 torn=0 done_injuries=0 turn=0
summary() {
    local of
    for of in "${kinds[@]}"; do printf '   %-13s %s\n' "$of" "${felt_of[$of]}"; done
    for of in "${!moments[@]}"; do printf '   during %-10s %s\n' "$of" "${moments[$of]}"; done
}
trap 'summary && say "stopped: $done_injuries injuries, $torn of them during a save, $ends ends, nothing lost so far" && exit 143' TERM INT
unfelt() { local kind; for kind in "${kinds[@]}"; do if [ "${felt_of[$kind]}" -eq 0 ]; then echo "$kind"; fi; done; }
while [ "$done_injuries" -lt "$wanted" ] || { [ "$wanted" -ge ${#kinds[@]} ] && [ -n "$(unfelt)" ]; }; do
    kind=${kinds[turn % ${#kinds[@]}]}
    turn=$((turn + 1))
    [ "$turn" -le $((wanted * 20)) ] || fail "the runs come to their ends before they are hurt: $done_injuries of $wanted injuries in $turn runs; not felt: $(unfelt | tr '\n' ' ')"
    injure
    nothing_left
    if compgen -G "$out/.partial-checkpoint-*" >/dev/null; then torn=$((torn + 1)); fi
    if [ "$code" -eq 0 ] && [ -f "$out/model.safetensors" ]; then compare_end; fi
    all_whole
    [ -n "$felt" ] || continue
    felt_of[$kind]=$((felt_of[$kind] + 1)) done_injuries=$((done_injuries + 1))
    if [ $((done_injuries % 25)) -eq 0 ]; then say "$done_injuries injuries, nothing lost so far; not felt: $(unfelt | tr '\n' ' ')"; fi
done
summary
say "$done_injuries injuries, $torn of them during a save, $ends runs came to their end with the right weights: nothing was lost, nothing was left"
