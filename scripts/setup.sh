#!/usr/bin/env bash
# Brings a fresh Debian 12 or Ubuntu 22.04 (or newer) to where the project can be built: system packages, libtorch.
# Does only what is missing, so it may be run at any time; takes no arguments.
#
#   TESSERA_TORCH=DIR    use the torch in this folder (the one with include/ and lib/), versions 2.11 to 2.13
#   TESSERA_CPU_ONLY=1   take the CPU build of torch although the machine has an NVIDIA GPU
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

torch_version=2.13.0

packages=(cmake ninja-build ccache pkg-config python3 python3-pip unzip ca-certificates
    libyaml-dev nlohmann-json3-dev libsimdjson-dev libspdlog-dev libfmt-dev
    libpcre2-dev libutf8proc-dev libhwy-dev libisal-dev libzstd-dev liblz4-dev liblzma-dev libbz2-dev libssl-dev
    libcurl4-openssl-dev libgtest-dev libgmock-dev)

system_packages() {
    command -v dpkg-query >/dev/null || {
        say "not a Debian or Ubuntu system: these packages, under the names they have here, must be installed: g++ ${packages[*]}"
        return
    }
    if [ "$(. /etc/os-release && echo "$ID $VERSION_ID")" = "ubuntu 22.04" ]; then
        packages+=(g++-12)
    else
        packages+=(g++)
    fi
    # Counts instructions in one test, which is skipped without it: no reason to stop who may not install packages.
    if [ "$(id -u)" -eq 0 ]; then packages+=(valgrind); fi
    local installed missing=() name
    installed=" $(dpkg-query -W -f='${db:Status-Status}=${Package} ' "${packages[@]}" 2>/dev/null || true)"
    for name in "${packages[@]}"; do
        [[ "$installed" == *" installed=$name "* ]] || missing+=("$name")
    done
    # Another cmake, ninja or pip (pyenv, conda, a manual install) is as good as the package.
    local still=()
    for name in "${missing[@]}"; do
        case $name in
            cmake | ccache | unzip | python3) command -v "$name" >/dev/null || still+=("$name") ;;
            ninja-build) command -v ninja >/dev/null || still+=("$name") ;;
            python3-pip) python3 -m pip --version >/dev/null 2>&1 || still+=("$name") ;;
            g++) { command -v g++ >/dev/null || [ -n "${CXX:-}" ]; } || still+=("$name") ;;
            *) still+=("$name") ;;
        esac
    done
    [ ${#still[@]} -gt 0 ] || return 0
    local line="apt-get install -y --no-install-recommends ${still[*]}" as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        else
            fail "${#still[@]} system packages are missing, and this user may not install them. Run, then start again:" \
                "    sudo apt-get update && sudo $line"
        fi
    fi
    say "installing system packages: ${still[*]}"
    "${as_root[@]}" apt-get update -qq
    # shellcheck disable=SC2086
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $line >/dev/null || fail "this failed: $line"
}

tool_versions() {
    local found
    found=$(cmake --version | sed -n '1s/.*version //p')
    version_at_least "$found" 3.22 ||
        fail "cmake 3.22 or newer is needed, found $found ($(command -v cmake)); 'python3 -m pip install cmake' gives a new one"
    choose_compiler
}

# Prints the version of the torch package in the folder $1 when it can be built against, else says on stderr why not.
usable_torch() {
    local dir=$1 version
    if [ ! -f "$dir/version.py" ] || [ ! -d "$dir/include/ATen" ] || [ ! -f "$dir/lib/libtorch_cpu.so" ]; then
        echo "'$dir' is no torch package with include/ATen and lib/libtorch_cpu.so" >&2
        return 1
    fi
    version=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$dir/version.py")
    if ! version_at_least "$version" 2.11 || version_at_least "$version" 2.14; then
        echo "'$dir' is torch $version; 2.11 to 2.13 is supported" >&2
        return 1
    fi
    echo "$version"
}

has_nvidia_gpu() { [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; }

# Downloads the CPU wheel into $1. No part of it that belongs to one Python version is used (libtorch_python is never
# linked), so a fixed one is asked for, whatever Python runs pip.
download_wheel() {
    local into=$1 wheel=(--no-deps --only-binary :all: --python-version 3.11 --implementation cp --abi cp311
        --platform "manylinux_2_28_$(uname -m)" --dest "$1" --disable-pip-version-check "torch==$torch_version+cpu")
    say "downloading libtorch $torch_version for CPUs (about 190 MB), through pip's own configuration"
    python3 -m pip download --quiet "${wheel[@]}" 2>"$into/pip.log" && return
    say "pip's configuration has no such wheel: asking PyTorch's public index"
    python3 -m pip download --quiet --index-url https://download.pytorch.org/whl/cpu "${wheel[@]}" 2>>"$into/pip.log" && return
    tail -n 5 "$into/pip.log" >&2
    fail "the wheel torch==$torch_version+cpu could not be downloaded (pip's last words stand above)." \
        "Remedy: a network that reaches a package index; or install torch 2.11 to 2.13 yourself and set TESSERA_TORCH to its folder."
}

libtorch() {
    if [ -n "${TESSERA_TORCH:-}" ]; then
        usable_torch "$TESSERA_TORCH" >/dev/null || fail "TESSERA_TORCH does not name a usable torch (see above)"
        return
    fi
    if [ -e .deps/torch ]; then
        usable_torch .deps/torch >/dev/null && return
        fail ".deps/torch is not usable (see above). Remedy: rm -rf .deps/torch, and start again."
    fi
    local installed version
    installed=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null || true)
    if [ -n "$installed" ] && version=$(usable_torch "$installed" 2>/dev/null); then
        say "libtorch: the installed torch $version in $installed"
        return
    fi
    if [ -z "${TESSERA_CPU_ONLY:-}" ] && has_nvidia_gpu; then
        fail "this machine has an NVIDIA GPU, and no torch 2.11 to 2.13 is installed. Do one of these, then start again:" \
            "    python3 -m venv .deps/venv && .deps/venv/bin/pip install torch==$torch_version && . .deps/venv/bin/activate" \
            "    export TESSERA_CPU_ONLY=1    # to do without the GPU"
    fi
    # Built up under a temporary name and renamed at the end: an interrupted set-up leaves nothing half done.
    mkdir -p .deps
    staging=$(mktemp -d .deps/staging.XXXXXX)
    trap 'rm -rf "$staging"' EXIT
    download_wheel "$staging"
    unzip -q "$staging"/torch-*.whl 'torch/include/*' 'torch/lib/*' 'torch/share/*' 'torch/version.py' \
        -x 'torch/lib/libtorch_python.so' -d "$staging/unpacked"
    usable_torch "$staging/unpacked/torch" >/dev/null || fail "the downloaded wheel lacks what is needed (see above)"
    mv "$staging/unpacked/torch" .deps/torch
    say "libtorch $torch_version is in .deps/torch"
}

system_packages
tool_versions
libtorch
