#!/usr/bin/env bash
# Installs cargo-deny, or cargo-semver-checks, and prints the folder for PATH. Does nothing where that version is.
#
#   scripts/publish-tools.sh [deny | semver-checks]
#
# They are compiled without optimisations, which takes half as long; what they check takes seconds either way.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-deny}" in
  deny) name=cargo-deny version=0.20.2 ;;
  semver-checks) name=cargo-semver-checks version=0.51.0 ;;
  *) echo "publish-tools: unknown tool '$1', expected deny or semver-checks" >&2; exit 1 ;;
esac
folder="${XDG_CACHE_HOME:-$HOME/.cache}/kiln-tools"
if [ "$("$folder/bin/$name" "${name#cargo-}" --version 2>/dev/null)" != "$name $version" ]; then
  # cargo itself installs into the folder and keeps what was compiled in a folder that it removes.
  env -u CARGO_TARGET_DIR cargo install --quiet --locked --debug --root "$folder" "$name@$version" >&2
fi
echo "$folder/bin"
