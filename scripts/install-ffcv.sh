#!/usr/bin/env bash
# Installs FFCV, which is published as source only and does not name all it needs. Usage: install-ffcv.sh PYTHON
set -eu
if ! pkg-config --exists opencv4 libturbojpeg; then
  echo "FFCV needs the packages libopencv-dev and libturbojpeg0-dev; without them its tests are not run" >&2
  exit 0
fi
"$1" -m pip install --quiet --disable-pip-version-check -c constraints.txt ffcv pillow
