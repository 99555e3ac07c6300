#!/usr/bin/env bash
# Installs Chromium and its WebDriver from Debian's packages, for `cargo test --package browser`. Does nothing where they are.
set -euo pipefail
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "chromium and chromedriver are missing, and there is no apt-get: install them by hand" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
