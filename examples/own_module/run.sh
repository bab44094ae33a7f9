#!/usr/bin/env bash
# Installs tessera from build/release into build/installed, builds the example with find_package(tessera), and runs it twice on
# two processes: the second run goes on where the first one stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
choose_compiler
cmake --install build/release --prefix build/installed >/dev/null
cmake -S examples/own_module -B build/own_module -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/build/installed" >/dev/null
cmake --build build/own_module
cd build/own_module
rm -rf own_module_state own_module.safetensors
../installed/bin/tessera launch --cpu --num_processes 2 ./own_module
../installed/bin/tessera launch --cpu --num_processes 2 ./own_module | grep step
