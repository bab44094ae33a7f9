#!/usr/bin/env bash
# Unit tests of the rooms that handle memory by hand, under AddressSanitizer and UndefinedBehaviorSanitizer.
# Arguments: rooms (none: those below). Leak checking is off: libtorch keeps its registries to the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
rooms=${*:-base tensor config comm launch nn}

targets=()
for room in $rooms; do
    if compgen -G "tests/unit/$room/*.cc" >/dev/null; then targets+=("test_unit_$room"); fi
done
[ ${#targets[@]} -gt 0 ] || fail "no unit tests in: $rooms"
build_preset asan "${targets[@]}"
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
for target in "${targets[@]}"; do
    say "asan: $target"
    timeout 600 "$(find build/asan -name "$target" -type f -perm -u+x | head -n 1)" --gtest_brief=1
done
