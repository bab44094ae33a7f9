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
    options=(--jobs 2)
    [ $part = tests ] || options=(--steps 4)
    TESSERA_PROGRAMS=$1 OUT=$work bench/gpu/run.sh $part --dry "${options[@]}"
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

# Rows of a name's beginning alone, and models that stay for the next run.
for made in 1 0; do
    TESSERA_PROGRAMS=$1 bench/gpu/run.sh bench "$work" --dry --only 1,8 --no-peers --steps 4 --models "$work/models" >/dev/null
    [ "$(grep -c '"row": "\(1 1B LoRA\|8 8B full, .*\)", ' "$work/bench.jsonl")" = 2 ] || fail "--only left out what it names"
    [ "$(wc -l <"$work/bench.jsonl")" = $((2 + made)) ] || fail "--only ran what it does not name"
done

# Functions run side by side, those that follow first; a limit ends all that a command started.
PYTHONDONTWRITEBYTECODE=1 python3 - "$work" <<'PYTHON'
import json, os, subprocess, sys, time, types
sys.path.insert(0, "bench/gpu")
import rows

path = sys.argv[1] + "/limits.jsonl"
mine = rows.Rows(types.SimpleNamespace(dry=True, programs="/nonexistent", out=path, part="tests"))
shell = lambda row, text, limit: mine.run(row, ["sh", "-c", text], limit) and None
begin = time.monotonic()
mine.side_by_side([lambda: shell("first", "sleep 0.5", 9) or [lambda: shell("follows", "true", 9)],
                   lambda: shell("second", "sleep 0.5; seq 2000; exit 3", 9),
                   lambda: shell("hangs", "sleep 98765 & echo $!; wait", 1), lambda: shell("last", "true", 9)], 2)
assert time.monotonic() - begin < 5
found = {line["row"]: line for line in map(json.loads, open(path))}
assert {row: line["status"] for row, line in found.items()} == {
    "first": "ok", "second": "failed", "follows": "ok", "hangs": "timed out", "last": "ok"}, found
assert list(found).index("follows") < list(found).index("last"), found
assert len(found["second"]["why"]) >= 1400 and found["second"]["why"].endswith("2000"), found
def ended(process):
    try:
        return open(f"/proc/{process}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
for _ in range(100):  # it was killed; where many run it takes a moment to end
    if ended(int(found["hangs"]["why"])): break
    time.sleep(0.05)
else:
    raise AssertionError("what the command started goes on")
mine.summary()
PYTHON

# What does not agree with the CPU is a failed row, and the exit code says so.
status=0
mkdir "$work/programs"
printf '#!/bin/sh\necho DIFFERS from the reference\nexit 1\n' >"$work/programs/tessera-worker"
cp "$work/programs/tessera-worker" "$work/programs/tessera"
chmod +x "$work"/programs/*
TESSERA_PROGRAMS=$work/programs bench/gpu/run.sh tests "$work" --dry >"$work/said" || status=$?
[ $status = 1 ] || fail "expected exit code 1 where a row fails, found $status"
grep -q '"status": "failed"' "$work/tests.jsonl" || fail "no row has failed"
grep -A1 '^failed: verify resident A_models/gpt2$' "$work/said" | grep -q '^    DIFFERS' || fail "no summary: $(cat "$work/said")"

for wrong in everything "tests --steps 6" "bench --dry --steps 3" "bench --dry --only 9" "bench --only"; do
    status=0
    # shellcheck disable=SC2086
    OUT=$work TESSERA_PROGRAMS=$work/programs bench/gpu/run.sh $wrong >"$work/said" 2>&1 || status=$?
    [ $status = 2 ] || fail "expected exit code 2 for '$wrong', found $status: $(cat "$work/said")"
done
if ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    status=0
    bench/gpu/run.sh tests "$work" >/dev/null 2>"$work/said" || status=$?
    [ $status = 3 ] || fail "expected exit code 3 without a GPU, found $status"
    grep -qE 'torch|programs|GPU' "$work/said" || fail "it does not say what is missing: $(cat "$work/said")"
fi
