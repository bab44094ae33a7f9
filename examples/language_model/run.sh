#!/usr/bin/env bash
# Builds the example against the library that build/release holds and runs it on two processes: in two parts, of which the second
# goes on where the first one stopped, and in one. Both ways end with the same weights, bit for bit.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
build_example language_model
text=$PWD/examples/language_model/sonnets.txt
cd build/language_model
rm -rf parts whole
mkdir parts whole
train() { ../installed/bin/tessera launch --cpu --num_processes 2 ./language_model "$text" "$@"; }
train parts 60
train parts 120
train whole 120 >whole.log
cmp parts/model.safetensors whole/model.safetensors || fail "a run that went on has other weights than one in one go"
