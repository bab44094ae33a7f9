#!/usr/bin/env bash
# Runs the libFuzzer targets of tests/fuzz from their committed seeds (tests/fuzz/seeds/<target without fuzz_>) and what long runs
# have found beyond them (tests/fuzz/corpus.tar.gz, see tests/fuzz/minimise.sh), with the words of their language, where it has any
# (tests/fuzz/dictionaries), one for each core at a time. Without arguments, as in .ci/run: 60 s
# a target, the same inputs in the same order each time, so that a change is refused for what it changed. With SECONDS: other
# inputs each time, the time shared equally; new ones stay in build/fuzz/corpus. Names behind it choose targets:
# .ci/fuzz.sh 600 fuzz_regex fuzz_wire.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
total=${1:-}
shift $(($# > 0))
targets=("$@")
if [ $# -eq 0 ]; then
    targets=(fuzz_chat_rows fuzz_command_line fuzz_csv fuzz_dcp_metadata fuzz_gguf fuzz_gguf_model fuzz_gguf_vocabulary fuzz_greeting fuzz_manifest fuzz_packed
        fuzz_peft_config fuzz_pickle fuzz_regex fuzz_rows fuzz_safetensors fuzz_spiece fuzz_template fuzz_tokenizer_config fuzz_tokenizer_json fuzz_torch_file
        fuzz_wikihow fuzz_wire fuzz_yaml)
fi
build_preset asan "${targets[@]}"
mkdir -p build/fuzz
if [ $# -eq 0 ] && grep -q '^build fuzz_parquet: ' build/asan/build.ninja; then
    cmake --build --preset asan --target fuzz_arrow fuzz_parquet
    targets+=(fuzz_arrow fuzz_parquet)
elif [ $# -eq 0 ]; then
    say "fuzz_arrow and fuzz_parquet are left out: no pyarrow found (TESSERA_PYARROW)"
fi
at_once=$(nproc)
found=$(mktemp -d build/fuzz/found.XXXXXX)
trap 'rm -rf "$found"' EXIT
tar -C "$found" -xzf tests/fuzz/corpus.tar.gz
if [ -n "$total" ]; then
    seconds=$((total * at_once / ${#targets[@]}))
    limits=(-max_total_time=$((seconds > 0 ? seconds : 1)))
    corpora=build/fuzz/corpus
else
    limits=(-max_total_time=60 -seed=1)
    corpora=$(mktemp -d build/fuzz/same.XXXXXX)  # of no earlier run
    trap 'rm -rf "$found" "$corpora"' EXIT
fi

# Little is kept of what was freed and of who allocated it: a fifth of the time, and four fifths of the memory (fuzz_manifest).
export ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=6

run_target() { # NAME
    local name=$1 corpus=$corpora/$1 seeds=()
    mkdir -p "$corpus"
    if [ -e "tests/fuzz/dictionaries/${name#fuzz_}.dict" ]; then seeds+=("-dict=tests/fuzz/dictionaries/${name#fuzz_}.dict"); fi
    for folder in "tests/fuzz/seeds/${name#fuzz_}" "$found/$name"; do
        if [ -d "$folder" ]; then seeds+=("$folder"); fi
    done
    "build/asan/fuzz/$name" "${limits[@]}" -timeout=10 -rss_limit_mb=4096 -mutate_depth=2 -artifact_prefix=build/fuzz/ \
        -print_final_stats=1 "$corpus" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1
}
say "${#targets[@]} targets, $at_once at a time, each with ${limits[*]}"
failed=()
for ((first = 0; first < ${#targets[@]}; first += at_once)); do
    running=()
    for name in "${targets[@]:first:at_once}"; do
        run_target "$name" &
        running+=("$!:$name")
    done
    for one in "${running[@]}"; do
        name=${one#*:}
        wait "${one%%:*}" || failed+=("$name")
        printf '   %-22s %s inputs\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: //p' "build/fuzz/$name.log")"
    done
done
for name in "${failed[@]}"; do tail -n 40 "build/fuzz/$name.log" >&2; done
[ ${#failed[@]} -eq 0 ] || fail "${failed[*]} found a failure; the input lies in build/fuzz"
