#!/usr/bin/env bash
# Everything through clang 19's front end, warnings as errors: what g++ lets pass. No code is made.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
configure_clang
python3 - build/clang/compile_commands.json <<'END' | xargs -0 -n 1 -P "$(compile_jobs)" bash -c
import json, re, sys
for entry in json.load(open(sys.argv[1])):
    command = re.sub(r" -o \S+ -c ", " -fsyntax-only ", entry["command"])
    print(f"cd '{entry['directory']}' && {command}", end="\0")
END
say "clang 19: no warnings"
