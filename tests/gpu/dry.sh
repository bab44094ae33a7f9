#!/usr/bin/env bash
# bench/gpu/run.sh on a machine that need not have a GPU: its dry run, and what it says where something is missing.
#
#   tests/gpu/dry.sh FOLDER_OF_PROGRAMS
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'dry.sh: %s\n' "$1" >&2; exit 1; }

for part in tests bench; do
    TESSERA_PROGRAMS=$1 OUT=$work bench/gpu/run.sh $part --dry
    # Each row once, with a status, and none failed.
    python3 - "$work/$part.jsonl" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert len({r["row"] for r in rows}) == len(rows) > 3, rows
assert {r["status"] for r in rows} <= {"ok", "cannot run"} and all(r["dry"] for r in rows), rows
assert all(r["why"] for r in rows if r["status"] == "cannot run"), rows
PYTHON
done
grep -q '"row": "verify resident B_train/llama_dora", "status": "ok"' "$work/tests.jsonl" || fail "no golden was verified"

# What does not agree with the CPU is a failed row, and the exit code says so.
status=0
mkdir "$work/programs"
printf '#!/bin/sh\necho DIFFERS from the reference\nexit 1\n' >"$work/programs/tessera-worker"
cp "$work/programs/tessera-worker" "$work/programs/tessera"
chmod +x "$work"/programs/*
TESSERA_PROGRAMS=$work/programs bench/gpu/run.sh tests "$work" --dry >/dev/null || status=$?
[ $status = 1 ] || fail "expected exit code 1 where a row fails, found $status"
grep -q '"status": "failed"' "$work/tests.jsonl" || fail "no row has failed"

status=0
bench/gpu/run.sh everything 2>"$work/said" || status=$?
[ $status = 2 ] || fail "expected exit code 2 for an unknown part, found $status"
if ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    status=0
    bench/gpu/run.sh tests "$work" >/dev/null 2>"$work/said" || status=$?
    [ $status = 3 ] || fail "expected exit code 3 without a GPU, found $status"
    grep -qE 'torch|programs|GPU' "$work/said" || fail "it does not say what is missing: $(cat "$work/said")"
fi
