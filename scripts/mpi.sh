#!/usr/bin/env bash
# Installs what kiln-parallel's feature `mpi` needs, from Debian's packages: Open MPI with mpicc and mpirun, and libclang, with which the
# bindings are made. Does nothing where they are.
set -euo pipefail
libclang() { ldconfig -p | grep -q 'libclang[-.]' || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null; }
if command -v mpicc >/dev/null && command -v mpirun >/dev/null && libclang; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "mpi: mpicc, mpirun or libclang is missing, and there is no apt-get: install an MPI library and libclang by hand" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends libopenmpi-dev openmpi-bin libclang-dev >/dev/null
