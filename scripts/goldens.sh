#!/usr/bin/env bash
# Compares the program with a set of reference values: scripts/goldens.sh DIR [flags of GoogleTest]
# DIR holds the families A_models ... K_preference, any of them; tokenizers lie in $TESSERA_GOLDENS_DATA (default: DIR/../data).
# Without DIR the project's own copies are read. Ends with what a set holds and this program does not do.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
case "${1:-}" in
-h | --help)
    sed -n '2,4s/^# //p' "$0"
    exit 0
    ;;
-* | "") ;;
*)
    [ -d "$1" ] || fail "there is no folder '$1'"
    TESSERA_GOLDENS=$(cd "$1" && pwd)
    export TESSERA_GOLDENS
    shift
    ;;
esac
bash scripts/setup.sh
build_preset release tessera tessera-worker test_golden
exec build/release/test_golden --gtest_brief=1 "$@"
