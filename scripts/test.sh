#!/usr/bin/env bash
# Sets up, builds everything, runs all tests. Arguments go to ctest: scripts/test.sh -R comm
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/lib.sh
build_preset release
# Two at a time: many wait more than they compute, and the longest, which start first, take half of the time.
ctest --test-dir build/release -j 2 --output-on-failure --no-tests=error --output-log build/release/ctest.log "$@"
