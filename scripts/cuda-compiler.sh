#!/usr/bin/env bash
# Installs what compiles kernels for burn's CUDA backend where there is no CUDA toolkit: libdevice (mathematical functions), and
# ptxas, with which the tests check kernels. Both are NVIDIA's packages from PyPI, under NVIDIA's licence. Prints the folder for
# CUDA_PATH. Does nothing where they are.
set -euo pipefail
version=13.5.37
folder="${XDG_CACHE_HOME:-$HOME/.cache}/kiln-cuda"
root="$folder/nvidia/cu13"
if [ ! -e "$root/nvvm/libdevice/libdevice.10.bc" ] || [ ! -x "$root/bin/ptxas" ]; then
    command -v python3 >/dev/null || { echo "cuda-compiler: python3 with pip is missing" >&2; exit 1; }
    mkdir -p "$folder"
    python3 -m pip install --quiet --no-deps --upgrade --target "$folder" \
        "nvidia-nvvm==$version" "nvidia-cuda-nvcc==$version" >&2
fi
[ -e "$root/nvvm/libdevice/libdevice.10.bc" ] || { echo "cuda-compiler: no libdevice.10.bc in '$root'" >&2; exit 1; }
echo "$root"
