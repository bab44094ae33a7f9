#!/usr/bin/env bash
# The demo: sets up, builds the program, trains a small T5 on two processes, fully sharded, and shows what it learnt.
# examples/demo/README.md says what happens. Results lie in build/demo; a second run starts from nothing there.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/lib.sh
say "building (some minutes the first time)"
build_preset release tessera
exec bash examples/demo/run.sh build/release/tessera build/demo
