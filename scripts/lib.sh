# shellcheck shell=bash
# Shared by the scripts of this folder: messages, the compiler, the number of parallel compiler processes.
# Sourced, with bash, from the project's root folder.

say() { printf '== %s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '%s\n' "$@" >&2
    exit 1
}

# True when the dotted version $1 is at least $2.
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# C++20 as the project uses it needs g++ 12. Ubuntu 22.04's g++ is 11, with a g++-12 beside it.
choose_compiler() {
    if [ -n "${CXX:-}" ]; then return; fi
    if command -v g++ >/dev/null && version_at_least "$(g++ -dumpversion)" 12; then
        export CC=gcc CXX=g++
    elif command -v g++-12 >/dev/null; then
        export CC=gcc-12 CXX=g++-12
    else
        fail "g++ 12 or newer is needed; found: $(g++ --version 2>/dev/null | head -n 1 || true)" \
            "install the package g++-12, or set CXX to a C++20 compiler"
    fi
}

# One compiler process for each core, but no more than the memory carries (2 GiB each).
compile_jobs() {
    local cores gib
    cores=$(nproc)
    gib=$(awk '/^MemAvailable/ {print int($2 / 1048576 / 2)}' /proc/meminfo)
    [ "$gib" -ge 1 ] || gib=1
    if [ "$gib" -lt "$cores" ]; then echo "$gib"; else echo "$cores"; fi
}

# Headers and libraries of torch $1 (2.11.0, or 2.12.*) as pip's own configuration finds it, in the folder $2.
download_torch() {
    local into
    mkdir -p .deps "$(dirname "$2")"
    into=$(mktemp -d .deps/staging.XXXXXX)
    say "downloading torch $1 (about 530 MB), for its headers and libraries"
    python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --implementation cp --abi cp311 \
        --platform "manylinux_2_28_$(uname -m)" --disable-pip-version-check --dest "$into" "torch==$1" &&
        unzip -q "$into"/torch-*.whl 'torch/include/*' 'torch/lib/*' 'torch/version.py' -x 'torch/lib/libtorch_python.so' -d "$into" &&
        mv "$into/torch" "$2" || {
        rm -rf "$into"
        fail "torch $1 could not be downloaded (see above). Remedy: put the folder of an installed one at $2"
    }
    rm -rf "$into"
}

# Configures the preset $1 and builds the targets that follow (none: all).
build_preset() {
    local preset=$1 targets=() options=()
    shift
    if [ $# -gt 0 ]; then targets=(--target "$@"); fi
    if [ -n "${TESSERA_TORCH:-}" ]; then options=("-DTESSERA_TORCH=$TESSERA_TORCH"); fi
    choose_compiler
    mkdir -p "build/$preset"
    cmake --preset "$preset" "${options[@]}" >"build/$preset/configure.log" 2>&1 || {
        cat "build/$preset/configure.log" >&2
        fail "cmake --preset $preset failed (its output stands above)"
    }
    cmake --build --preset "$preset" --parallel "$(compile_jobs)" "${targets[@]}"
}

# Installs what build/release holds into build/installed, and builds examples/$1 with find_package(tessera) in build/$1.
build_example() {
    choose_compiler
    cmake --install build/release --prefix build/installed >/dev/null
    cmake -S "examples/$1" -B "build/$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/build/installed" >/dev/null
    cmake --build "build/$1"
}

# Configures build/clang, and writes build/clang/single/compile_commands.json for tools that take one source at a time.
configure_clang() {
    mkdir -p build/clang
    CC=clang-19 CXX=clang++-19 cmake --preset clang >build/clang/configure.log 2>&1 || fail "cmake --preset clang failed" "$(cat build/clang/configure.log)"
    python3 .ci/expand_batches.py build/clang
}
