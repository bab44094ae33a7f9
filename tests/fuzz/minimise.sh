#!/usr/bin/env bash
# Writes tests/fuzz/corpus.tar.gz from the inputs of long runs (.ci/fuzz.sh SECONDS keeps them in build/fuzz/corpus): of each target the
# fewest that, with its seeds, reach every place in the code that all of them reach. .ci/fuzz.sh starts from them.
#
#   tests/fuzz/minimise.sh [CORPORA]     # a folder for each target; build/fuzz/corpus, and what the archive holds now
set -euo pipefail
cd "$(dirname "$0")/../.."
corpora=${1:-build/fuzz/corpus}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/before" "$work/corpus"
if [ -e tests/fuzz/corpus.tar.gz ]; then tar -C "$work/before" -xzf tests/fuzz/corpus.tar.gz; fi
export ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=6:detect_leaks=0
for program in build/asan/fuzz/fuzz_*; do
    name=$(basename "$program") inputs=() kept=$work/corpus/$(basename "$program")
    for folder in "$work/before/$name" "$corpora/$name"; do
        if [ -d "$folder" ]; then inputs+=("$folder"); fi
    done
    [ ${#inputs[@]} -gt 0 ] || continue
    mkdir "$kept"
    # With the seeds at first, so that nothing is taken for what they reach.
    seeds=tests/fuzz/seeds/${name#fuzz_}
    if [ -d "$seeds" ]; then cp "$seeds"/* "$kept"; fi
    "$program" -merge=1 -use_counters=0 -timeout=20 -rss_limit_mb=4096 "$kept" "${inputs[@]}" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
    if [ -d "$seeds" ]; then for seed in "$seeds"/*; do rm -f "$kept/$(basename "$seed")"; done; fi
    printf '%-22s %s inputs\n' "$name" "$(find "$kept" -type f | wc -l)"
done
tar -C "$work/corpus" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -9n >tests/fuzz/corpus.tar.gz.part
mv tests/fuzz/corpus.tar.gz.part tests/fuzz/corpus.tar.gz
