#!/usr/bin/env bash
# Where a machine has no nvcc, takes one from PyPI, so that the CUDA build is checked everywhere. Usage: install-nvcc.sh PYTHON
set -eu
if [ "${CFOL_CUDA:-}" = 0 ] || [ -x "${CUDA_HOME:-/nonexistent}/bin/nvcc" ] || command -v nvcc >/dev/null; then
  exit 0
fi
echo "no nvcc here: installing NVIDIA's from PyPI (276 MB) ..."
"$1" -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 \
  nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
