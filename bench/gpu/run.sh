#!/usr/bin/env bash
# Proves and measures on a machine with a GPU. Needs this checkout, .gpu/ (bench/gpu/carry.sh) or build/cuda, and a Python with
# torch 2.11.0+cu130; no network. Ends by itself within 200 s (tests) or 540 s (bench) and keeps what it has by then.
#
#   bench/gpu/run.sh tests [FOLDER]      # versions, ceilings, kernels, goldens and runs on the GPU beside the CPU
#       --jobs N                         # rows at a time, of 2 threads each (8)
#   bench/gpu/run.sh bench [FOLDER]      # tokens/s and peak memory of the rows of docs/benchmarks.md, in turns with transformers + PEFT
#       --only 1,2                       # rows whose names begin so: "4 " also has 4's peer, "4 8B LoRA:" the peer alone
#       --steps N                        # of each row (6); the second half is measured
#       --no-peers                       # without transformers
#       --models FOLDER                  # keeps the models there for the next run; without it they lie in /dev/shm (if they fit) until their last row
#   bench/gpu/run.sh tests --dry         # the same script with the CPU in the GPU's place and small sizes: proves itself only
#
# FOLDER (else $OUT, else bench/gpu/results) gets tests.jsonl or bench.jsonl: a JSON line a row, written as it ends. Exit codes:
# 0 all rows that can run have passed, 1 some have not, 2 wrong usage, 3 something is missing: no GPU, torch or programs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../.." && pwd)
fail() { printf 'run.sh: %s\n' "$1" >&2; exit "${2:-3}"; }

part=${1:-} dry='' options=()
case $part in tests | bench) shift ;; *) fail "expected 'tests' or 'bench', found '${part}'" 2 ;; esac
folder=${OUT:-$here/results}
while [ $# -gt 0 ]; do
    case $part:$1 in
        *:--dry) dry=--dry options+=(--dry) ;;
        bench:--peers | bench:--no-peers) options+=("$1") ;;
        tests:--jobs | bench:--only | bench:--steps | bench:--models)
            [ $# -gt 1 ] || fail "$1 needs a value" 2
            options+=("$1" "$2")
            shift ;;
        *:-*) fail "unknown option '$1' of $part" 2 ;;
        *) folder=$1 ;;
    esac
    shift
done
command -v python3 >/dev/null || fail "python3 is needed"

if [ -n "$dry" ]; then
    programs=${TESSERA_PROGRAMS:-$root/build/release}
else
    programs=$root/.gpu/bin
    if [ -e "$root/.gpu/carried.tar.xz" ] && [ ! "$programs" -nt "$root/.gpu/carried.tar.xz" ]; then
        tar -C "$root/.gpu" -xJf "$root/.gpu/carried.tar.xz"
        touch "$programs"
    fi
    [ -x "$programs/tessera-worker" ] || programs=$root/build/cuda
    torch=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")')
    [ -n "$torch" ] || fail "$(command -v python3) has no torch; expected 2.11.0+cu130"
    found=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch/version.py")
    [ "$found" = 2.11.0+cu130 ] || fail "expected torch 2.11.0+cu130, with which the programs were built, found $found in $torch"
    # For the programs alone, not for Python: libtorch, what it was built with, and what .gpu brings.
    export TESSERA_LIBRARIES=$torch/lib
    for library in cudnn nvshmem nccl cusparselt cu13; do TESSERA_LIBRARIES+=:$(dirname "$torch")/nvidia/$library/lib; done
    TESSERA_LIBRARIES+=:$root/.gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
[ -x "$programs/tessera-worker" ] || fail "no programs in $programs; run bench/gpu/carry.sh on a machine with a compiler first"
mkdir -p "$folder"
exec python3 "$here/rows.py" "$part" --programs "$programs" --out "$folder/$part.jsonl" "${options[@]}"
