#!/usr/bin/env bash
# Counts the instructions of a training step of tiny models under valgrind's callgrind, and holds them against the recorded
# numbers: 1 when a step takes over 10% more. 77 (skipped) without valgrind, or when the numbers were recorded for another
# processor, libtorch or compiler than valgrind presents here.
#
#   count.sh COUNTED_STEPS DATA_FOLDER RECORDED_FILE [--all | --record]
#
# --all, as .ci/nightly does: of every PEFT method, too. --record: the same, to be held against from now on.
#
# What makes the counts repeat: one thread; the instruction sets named below, which every valgrind presents on a processor
# with AVX2; and the difference between runs of N and of 2N steps, which leaves out what is done once.
set -euo pipefail
program=$1 data=$2 recorded=$3 mode=${4:-check}
command -v valgrind >/dev/null || {
    echo "skipped: valgrind is not installed (apt-get install valgrind)"
    exit 77
}
grep -qw avx2 /proc/cpuinfo || {
    echo "skipped: the numbers are for processors with AVX2"
    exit 77
}
every=()
if [ "$mode" != check ]; then every=(all); fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
valgrind --tool=callgrind --callgrind-out-file="$work/out" --toggle-collect=tessera_counted_steps \
    --dump-after=tessera_counted_steps "$program" "$data" "${every[@]}" >"$work/said" 2>"$work/log" || {
    cat "$work/said" "$work/log"
    exit 1
}

# The program says one line a dump: a job and its number of steps.
here=$(head -n 1 "$work/said")
part=0 first=() counted=""
while read -r name steps; do
    part=$((part + 1))
    total=$(sed -n 's/^\(totals\|summary\): *//p' "$work/out.$part" | head -n 1)
    if [ $((part % 2)) -eq 1 ]; then
        first=("$name" "$steps" "$total")
    else
        counted+="$name $(((total - first[2]) / (steps - first[1])))"$'\n'
    fi
done < <(tail -n +2 "$work/said")

if [ "$mode" = --record ]; then
    {
        echo "# Instructions of a training step, by tests/instructions/count.sh --record. The first line is what they hold for."
        echo "$here"
        printf '%s' "$counted"
    } >"$recorded"
    cat "$recorded"
    exit 0
fi
holds_for=$(sed -n 2p "$recorded")
if [ "$here" != "$holds_for" ]; then
    echo "skipped: recorded for '$holds_for', this is '$here'; record anew with: $0 $* --record"
    exit 77
fi
status=0
while read -r name now; do
    [ -n "$name" ] || continue
    then=$(sed -n "s/^$name //p" "$recorded")
    [ -n "$then" ] || {
        echo "$name is not in $recorded; record anew with --record"
        exit 1
    }
    echo "$name: $now instructions a step, recorded $then ($((now * 1000 / then - 1000)) per mille)"
    [ $((now * 10)) -le $((then * 11)) ] || {
        echo "$name: over 10% more than recorded. Take it away, or, where it buys something, record anew with --record"
        status=1
    }
done <<<"$counted"
exit $status
