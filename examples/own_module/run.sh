#!/usr/bin/env bash
# Builds the example against the library that build/release holds and runs it twice on two processes: the second run goes on where
# the first one stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
build_example own_module
cd build/own_module
rm -rf own_module_state own_module.safetensors
../installed/bin/tessera launch --cpu --num_processes 2 ./own_module
../installed/bin/tessera launch --cpu --num_processes 2 ./own_module | grep step
