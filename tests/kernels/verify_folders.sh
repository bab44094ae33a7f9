#!/usr/bin/env bash
# Holds folders of the reference stack against the program.   verify_folders.sh TESSERA GOLDENS FOLDER...
set -euo pipefail
tessera=$1 goldens=$2
shift 2
for folder in "$@"; do
    "$tessera" verify "$goldens/$folder"
done
