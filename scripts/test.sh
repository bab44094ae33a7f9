#!/usr/bin/env bash
# Sets up, builds everything, runs all tests. Arguments go to ctest: scripts/test.sh -R comm
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/lib.sh
build_preset release
# Tests write, sync and remove many small files: in memory, where there is room, nobody waits for a disk. (What a test needs on a disk
# lies beside the program.) Some have programs and other users there.
if [ -z "${TMPDIR:-}" ] && awk '/^MemAvailable/ { exit $2 < 8 * 1048576 }' /proc/meminfo &&
    df --output=avail -k /dev/shm 2>/dev/null | awk 'END { exit $1 < 4 * 1048576 }' && ! grep -q ' /dev/shm .*noexec' /proc/mounts; then
    TMPDIR=$(mktemp -d /dev/shm/tests.XXXXXX)
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
    chmod 1777 "$TMPDIR"
fi
# One more than there are cores: many wait more than they compute. The longest start first.
status=0
ctest --test-dir build/release -j $(($(nproc) + 1)) --output-on-failure --no-tests=error --output-log build/release/ctest.log "$@" || status=$?
if [ "$status" -ne 0 ]; then
    # A log is read from its end: there, what each test printed that failed or did not end, without what the others did.
    say "failed:"
    awk '/^\[ RUN  / { text = ""; open = 1 }
         open { text = text $0 "\n" }
         /^\[ (      OK|  SKIPPED) / { open = 0 }
         open && (/^\[  FAILED / || /^ +Start +[0-9]+: /) { printf "%s", text; open = 0 }' build/release/ctest.log
fi
exit "$status"
