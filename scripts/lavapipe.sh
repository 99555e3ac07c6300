#!/usr/bin/env bash
# Installs Mesa's lavapipe from Debian's packages: a Vulkan driver that computes on the processor, for the tests of wgpu without a GPU. Does
# nothing where a Vulkan driver and its loader are.
set -euo pipefail
if ldconfig -p | grep -q 'libvulkan\.so\.1' && compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "lavapipe: no Vulkan driver is here, and there is no apt-get: install Mesa's Vulkan drivers by hand" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends mesa-vulkan-drivers libvulkan1 >/dev/null
