#!/usr/bin/env bash
# Runs every libFuzzer target of tests/fuzz for some seconds ($1, default 12), from its committed seeds
# (tests/fuzz/seeds/<target without fuzz_>); new inputs stay in build/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
seconds=${1:-12}

# The targets that have run clean for longer than this.
targets=(fuzz_chat_rows fuzz_csv fuzz_dcp_metadata fuzz_gguf fuzz_manifest fuzz_packed fuzz_pickle fuzz_safetensors fuzz_spiece fuzz_template
    fuzz_tokenizer_json fuzz_torch_file fuzz_yaml)
CC=clang-19 CXX=clang++-19 build_preset fuzz "${targets[@]}"
found=0
while IFS= read -r program; do
    found=$((found + 1))
    name=$(basename "$program")
    corpus=build/fuzz/corpus/$name
    mkdir -p "$corpus"
    seeds=()
    if [ -d "tests/fuzz/seeds/${name#fuzz_}" ]; then seeds=("tests/fuzz/seeds/${name#fuzz_}"); fi
    say "$name: $seconds s"
    "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -artifact_prefix=build/fuzz/ -print_final_stats=1 \
        "$corpus" "${seeds[@]}" 2>"build/fuzz/$name.log" || {
        tail -n 40 "build/fuzz/$name.log" >&2
        fail "$name found a failure; the input lies in build/fuzz"
    }
done < <(for name in "${targets[@]}"; do echo "build/fuzz/fuzz/$name"; done)
[ "$found" -gt 0 ] || fail "no fuzz_* program was built"
