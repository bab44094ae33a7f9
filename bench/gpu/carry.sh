#!/usr/bin/env bash
# Prepares .gpu/ on a machine with a network and a compiler: with this checkout it is all that bench/gpu/run.sh needs on a
# machine with a GPU, where torch 2.11.0+cu130 is installed and nothing can be fetched or built.
#
#   bench/gpu/carry.sh            # takes minutes the first time: 531 MB to fetch, everything to compile
#
# It holds stripped programs, kernels and the system libraries that they were linked with (not libtorch and glibc), in one
# archive, and the commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

version=2.11.0 limit_mib=64 torch=.deps/torch-cu130
programs=(tessera tessera-worker bench/train_bench) targets=(tessera tessera-worker train_bench) libraries=()
if command -v nvcc >/dev/null; then
    programs+=(cuda/kernel_check) targets+=(kernel_check gpu_kernels) libraries+=(libtessera_cuda.so)
fi

# The package index has one build of this version, that for CUDA 13.0. NVIDIA's libraries are not needed for linking.
fetch_torch() {
    [ -e "$torch/lib/libtorch_cuda.so" ] && return
    rm -rf "$torch"
    download_torch "$version" "$torch"
    grep -q "^__version__ = '$version+cu130'" "$torch/version.py" ||
        { rm -rf "$torch"; fail "expected torch $version+cu130, the package index has another build of it"; }
}

# Of the programs, those that do not come with libtorch, the GPU's driver or the C library.
needed_libraries() {
    local program
    for program in "${programs[@]}"; do
        LD_LIBRARY_PATH='' ldd "build/cuda/$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
    done | sort -u | grep -E '/lib(crypto|hwy|yaml-0|pcre2-8|simdjson|isal|zstd|lz4|lzma|bz2|utf8proc|spdlog|fmt|stdc\+\+|gcc_s)\.so'
}

fetch_torch
say "building with it"
mkdir -p build/cuda
choose_compiler
cmake --preset cuda -DTESSERA_TESTS=OFF -DTESSERA_BENCH=ON >build/cuda/configure.log 2>&1 || { cat build/cuda/configure.log >&2; exit 1; }
cmake --build --preset cuda --parallel "$(compile_jobs)" --target "${targets[@]}"

rm -rf .gpu
mkdir -p .gpu/bin .gpu/lib
for program in "${programs[@]}"; do strip -o ".gpu/bin/$(basename "$program")" "build/cuda/$program"; done
for library in "${libraries[@]}"; do strip --strip-unneeded -o ".gpu/lib/$library" "build/cuda/$library"; done
needed_libraries | while read -r library; do
    cp -L "$library" .gpu/lib/
    strip --strip-unneeded ".gpu/lib/$(basename "$library")"
done
git describe --always --abbrev=12 --dirty >.gpu/commit
tar -C .gpu -cJf .gpu/carried.tar.xz bin lib  # run.sh unpacks it
rm -rf .gpu/bin .gpu/lib
size=$(($(git ls-files -z --cached --others --exclude-standard | xargs -0 cat | wc -c) + $(cat .gpu/* | wc -c)))
[ "$size" -lt $((limit_mib << 20)) ] ||
    fail "the checkout and .gpu are $((size >> 20)) MiB, and what travels must stay below $limit_mib MiB"
say ".gpu is ready: $(du -h .gpu/carried.tar.xz | cut -f1), commit $(cat .gpu/commit)"
