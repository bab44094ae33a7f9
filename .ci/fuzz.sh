#!/usr/bin/env bash
# Runs the libFuzzer targets of tests/fuzz for $1 seconds in all (default 170), shared equally, one for each core at a time,
# from their committed seeds (tests/fuzz/seeds/<target without fuzz_>); new inputs stay in build/. Names behind it
# choose targets: .ci/fuzz.sh 600 fuzz_regex fuzz_wire.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
total=${1:-170}
shift $(($# > 0))
targets=("$@")
if [ $# -eq 0 ]; then
    targets=(fuzz_chat_rows fuzz_command_line fuzz_csv fuzz_dcp_metadata fuzz_gguf fuzz_gguf_vocabulary fuzz_greeting fuzz_manifest fuzz_packed
        fuzz_peft_config fuzz_pickle fuzz_regex fuzz_rows fuzz_safetensors fuzz_spiece fuzz_template fuzz_tokenizer_json fuzz_torch_file
        fuzz_wikihow fuzz_wire fuzz_yaml)
fi
CC=clang-19 CXX=clang++-19 build_preset fuzz "${targets[@]}"
if [ $# -eq 0 ] && grep -q '^build fuzz_parquet: ' build/fuzz/build.ninja; then
    cmake --build --preset fuzz --target fuzz_parquet
    targets+=(fuzz_parquet)
elif [ $# -eq 0 ]; then
    say "fuzz_parquet is left out: no pyarrow found (TESSERA_PYARROW)"
fi
at_once=$(nproc)
seconds=$((total * at_once / ${#targets[@]}))
[ "$seconds" -gt 0 ] || seconds=1

run_target() { # NAME
    local name=$1 corpus=build/fuzz/corpus/$1 seeds=()
    mkdir -p "$corpus"
    if [ -d "tests/fuzz/seeds/${name#fuzz_}" ]; then seeds=("tests/fuzz/seeds/${name#fuzz_}"); fi
    "build/fuzz/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -artifact_prefix=build/fuzz/ -print_final_stats=1 \
        "$corpus" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1
}
say "${#targets[@]} targets, $seconds s each, $at_once at a time"
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
