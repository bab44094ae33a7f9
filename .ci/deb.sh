#!/usr/bin/env bash
# Makes the Debian package of build/release, unpacks it, and trains with what is in it: its programs load nothing but its own
# libraries and the system's.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
(cd build/release && cpack -G DEB -B "$scratch" >"$scratch/log" 2>&1) || { cat "$scratch/log"; fail "cpack made no package"; }
dpkg-deb -x "$scratch"/tessera_*.deb "$scratch/root"
bin=$scratch/root/usr/bin
for program in tessera tessera-worker; do
    foreign=$(env -u LD_LIBRARY_PATH ldd "$bin/$program" | awk -v own="$scratch/root/" \
        '/not found/ || ($3 ~ /^\// && index($3, own) != 1 && $3 !~ /^(\/usr)?\/lib/)')
    [ -z "$foreign" ] || fail "$program of the package loads what is neither in it nor the system's:" "$foreign"
done
[ -s "$scratch/root/usr/share/man/man1/tessera-sft.1" ] || fail "the package has no manual pages"
env -u LD_LIBRARY_PATH PATH="$bin:/usr/bin:/bin" HOME="$scratch" tessera test >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "tessera test of the package failed"; }
say "the package of $(stat -c %s "$scratch"/tessera_*.deb | numfmt --to=iec) works"
