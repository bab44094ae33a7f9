#!/usr/bin/env bash
# clang-tidy (.clang-tidy) on the sources that differ from a commit: $1, by default what main was before this change. Without a
# difference it does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
base=${1:-$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD~1)}
if [ "$base" = "$(git rev-parse HEAD)" ]; then base=$(git rev-parse HEAD~1); fi
mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- 'src/*.cc')
[ ${#changed[@]} -gt 0 ] || { say "no source differs from $base" && exit 0; }
configure_clang
say "clang-tidy: ${changed[*]}"
printf '%s\0' "${changed[@]}" |
    xargs -0 -n 1 -P "$(compile_jobs)" clang-tidy-19 -p build/clang/single --quiet --warnings-as-errors='*'
