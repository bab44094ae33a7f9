#!/usr/bin/env bash
# Sets up, builds everything, runs all tests. Arguments go to ctest: scripts/test.sh -R comm
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/lib.sh
build_preset release
ctest --test-dir build/release --output-on-failure --no-tests=error --output-log build/release/ctest.log "$@"
