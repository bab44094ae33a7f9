#!/usr/bin/env bash
# clang-tidy (.clang-tidy) on the lines of src that differ from a commit ($1, default HEAD~1); a warning is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
configure_clang
git diff -U0 --diff-filter=d "${1:-HEAD~1}" -- 'src/*.cc' |
    clang-tidy-diff-19.py -p1 -quiet -j "$(compile_jobs)" -path build/clang/single -clang-tidy-binary clang-tidy-19
