#!/usr/bin/env bash
# Installs Debian packages where that is possible without asking: as root or with `sudo -n`, unless CFOL_NO_APT is set.
# Otherwise it names them and goes on: what needs them says so itself. Usage: system-packages.sh build|test PYTHON
set -u
packages=()
if [ "$1" = build ]; then
  # Debian's own Python comes without what virtual environments and extensions need
  command -v g++ >/dev/null || packages+=(g++)
  "$2" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
  "$2" -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    packages+=(python3-dev)
else
  packages=(clang pkg-config libopencv-dev libturbojpeg0-dev chromium)
fi
[ "${#packages[@]}" -eq 0 ] && exit 0

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

if [ -n "${CFOL_NO_APT:-}" ] || ! command -v apt-get >/dev/null; then
  run=""
elif [ "$(id -u)" -eq 0 ]; then
  run="env"
elif sudo -n true 2>/dev/null; then
  run="sudo -n env"
else
  run=""
fi
if [ -z "$run" ]; then
  echo "system packages that are missing (to $1): ${missing[*]}" >&2
  exit 0
fi
echo "installing ${missing[*]} ..."
$run apt-get update -qq
$run DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
  echo "apt-get could not install: ${missing[*]}" >&2
