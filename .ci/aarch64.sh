#!/usr/bin/env bash
# Compiles the kernels that need no libtorch for aarch64 with Debian's cross compiler, and runs their tests under qemu-user.
# Needs g++-aarch64-linux-gnu, qemu-user and libgtest-dev (for its sources).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v "$program" >/dev/null || fail "$program is missing" "apt-get install g++-aarch64-linux-gnu qemu-user libgtest-dev"
done
out=build/aarch64 gtest=/usr/src/googletest/googletest
mkdir -p "$out/include"
# Headers that do not depend on the architecture, without those of the host's C library beside them.
ln -sfn /usr/include/hwy "$out/include/hwy"
compile=(aarch64-linux-gnu-g++ -std=c++20 -O2 -fopenmp-simd -fno-trapping-math -DNDEBUG -Wall -Wextra -Werror
    -Iinclude -Isrc -Itests "-I$gtest/include" -isystem "$out/include")
sources=(src/base/{cpu_level,env,error}.cc src/nn/kernels/*.cc src/quant/grouped_products.cc tests/kernels/*_test.cc)
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} sh -c \
    '"$@" -c "{}" -o "$0/$(echo "{}" | tr / _).o"' "$out" "${compile[@]}"
aarch64-linux-gnu-g++ -std=c++20 -O1 "-I$gtest/include" "-I$gtest" -c "$gtest/src/gtest-all.cc" -o "$out/gtest.o"
aarch64-linux-gnu-g++ -std=c++20 -O1 "-I$gtest/include" -c "$gtest/src/gtest_main.cc" -o "$out/gtest_main.o"
aarch64-linux-gnu-g++ -static -o "$out/test_kernels" "$out"/src_*.o "$out"/tests_*.o "$out"/gtest*.o
qemu-aarch64 "$out/test_kernels" "$@"
