#!/usr/bin/env bash
# Unit tests of some rooms under sanitizers: asan (AddressSanitizer and UndefinedBehaviorSanitizer) or tsan (ThreadSanitizer).
#   .ci/sanitize.sh [asan|tsan] [ROOMS...]
# No rooms: with asan those that handle memory by hand, with tsan comm; of comm's suite on several hosts two layouts
# of five ({1, 1} and {2, 2}: the others take long and the same paths). Leak checking is off: libtorch keeps its registries to the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
kind=asan
if [ "${1:-}" = asan ] || [ "${1:-}" = tsan ]; then kind=$1 && shift; fi
declare -A usual=([asan]="comm nn base tensor config launch" [tsan]="comm")
rooms=${*:-${usual[$kind]}}
# Never under mpirun: UCX, which Debian's MPICH uses, replaces allocation beside AddressSanitizer and crashes, and MPI's libraries leak.
export GTEST_FILTER='-Comm/Mpirun.*'
if [ $# -eq 0 ]; then GTEST_FILTER+=':Comm/SeveralHosts.DoTheWholeSuite/1:Comm/SeveralHosts.DoTheWholeSuite/3:Comm/SeveralHosts.DoTheWholeSuite/4'; fi

targets=()
for room in $rooms; do
    if compgen -G "tests/unit/$room/*.cc" >/dev/null; then targets+=("test_unit_$room"); fi
done
[ ${#targets[@]} -gt 0 ] || fail "no unit tests in: $rooms"
build_preset "$kind" "${targets[@]}"
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# libgomp and libtorch are not instrumented: what their threads do with each other is not seen, so each rank has one thread.
# tests/support/thread_sanitizer.cc says what is suppressed.
export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 OMP_NUM_THREADS=1
say "$kind: ${targets[*]}"
failed=0
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c \
    'timeout 2400 "$0/{}" --gtest_brief=1 >"$0/{}.log" 2>&1 || { tail -n 100 "$0/{}.log"; echo "{} failed"; exit 1; }' "build/$kind" || failed=1
for target in "${targets[@]}"; do printf '   %-22s %s\n' "$target" "$(tail -n 1 "build/$kind/$target.log")"; done
[ "$failed" -eq 0 ] || fail "$kind found a failure; it stands above"
