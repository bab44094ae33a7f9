#!/usr/bin/env bash
# Builds the documents as a site in build/site/html with MkDocs Material, which pip fetches into .deps/site. A link, heading or
# file that is not there, and a page that the navigation lacks, fail. Takes no arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ $# -eq 0 ] || fail "unknown argument '$1'; see the first lines of scripts/site.sh"
[ -x .deps/site/bin/mkdocs ] || {
    say "fetching MkDocs Material"
    mkdir -p .deps
    staging=$(mktemp -d .deps/staging.XXXXXX)
    trap 'rm -rf "$staging"' EXIT
    python3 -m venv "$staging"
    "$staging/bin/pip" install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10' || fail "MkDocs Material could not be installed by pip (see above)"
    rm -rf .deps/site
    mv "$staging" .deps/site
}
rm -rf build/site
mkdir -p build/site/source
git ls-files -z -co --exclude-standard -- '*.md' docs examples LICENSE ':!tests' ':!.github' ':!docs/Doxyfile' | xargs -0 cp --parents -t build/site/source
NO_MKDOCS_2_WARNING=1 .deps/site/bin/python -m mkdocs build --quiet --strict
say "the site is build/site/html/index.html"
