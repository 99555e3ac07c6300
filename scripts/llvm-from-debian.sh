#!/usr/bin/env bash
# Puts Debian's LLVM 22 where burn's CUDA and ROCm backends look for their own LLVM.
#
# burn's features `cuda` and `rocm` compile kernels with LLVM, and the build script of its dependency `tracel-llvm-bundler`
# downloads a ready-made LLVM from GitHub. Where GitHub is out of reach, the build fails. It also succeeds with Debian's
# packages in the bundle's place: this script installs them and makes the folder that the build script
# accepts. Run it once before `cargo build --features cuda`; to run it again changes nothing.
#
#   scripts/llvm-from-debian.sh           install and set up (needs root for apt-get)
#   scripts/llvm-from-debian.sh --check   only say whether the folder is in place
#   scripts/llvm-from-debian.sh --remove  remove the folder again
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "llvm-from-debian: $*" >&2; exit 1; }

packages=(llvm-22-dev liblld-22-dev libpolly-22-dev zlib1g-dev libzstd-dev libxml2-dev libz3-dev)
config=/usr/lib/llvm-22/bin/llvm-config
# The bundle's version stands in the bundler's version: 23.1.0-4 in tracel-llvm-bundler 23.1.0-4.
version=$(awk '/^name = "tracel-llvm-bundler"$/ { getline; gsub(/version = |"/, ""); print; exit }' Cargo.lock)
[ -n "$version" ] || die "Cargo.lock does not name tracel-llvm-bundler; this script is of no use with this burn"
folder="${XDG_DATA_HOME:-$HOME/.local/share}/tracel/tracel-llvm-$version"

case "${1:-}" in
  --check) [ -e "$folder/.tracel-llvm-installed" ] || die "'$folder' is not set up"; echo "$folder"; exit 0 ;;
  --remove)
    if [ -e "$folder/.from-debian" ]; then rm -r "$folder"; elif [ -e "$folder" ]; then die "'$folder' was not made by this script"; fi
    exit 0 ;;
  "") ;;
  *) die "unknown option '$1', expected --check, --remove, or none" ;;
esac

if [ -e "$folder/.tracel-llvm-installed" ] && [ ! -e "$folder/.from-debian" ]; then
  echo "llvm-from-debian: '$folder' holds burn's own bundle already; nothing to do" >&2
  exit 0
fi
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "this is $(uname -s)-$(uname -m), expected Linux-x86_64"

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}\n' "${packages[@]}" 2>/dev/null | grep -cx installed)" -eq ${#packages[@]} ]; }

if [ -e "$folder/.from-debian" ] && "$config" --version >/dev/null 2>&1 && installed; then
  echo "$folder" # to touch it again would make cargo compile the backend again
  exit 0
fi

available() { apt-cache policy llvm-22-dev 2>/dev/null | awk '/Candidate:/ && $2 != "(none)" { found = 1 } END { exit !found }'; }

command -v apt-get >/dev/null || die "no apt-get here: this script is for Debian and its kin"
if ! installed; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo: have an administrator install ${packages[*]}"
    as_root=(sudo)
  fi
  available || "${as_root[@]}" apt-get update
  available || die "this system has no package llvm-22-dev (Debian and apt.llvm.org have it)"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
fi
"$config" --version >/dev/null || die "$config does not run"

mkdir -p "$folder/bin"
# Libraries given by path would be searched for beside this folder: name them for the linker instead.
cat > "$folder/bin/llvm-config" <<EOF
#!/bin/sh
$config "\$@" | sed -E 's#(^| )/[^ ]*/lib([^ /]*)\.so#\1-l\2#g'
EOF
chmod +x "$folder/bin/llvm-config"
touch "$folder/.from-debian" "$folder/.tracel-llvm-installed"
echo "$folder"
