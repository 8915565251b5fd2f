#!/usr/bin/env bash
# Installs the Debian packages that are missing, and nothing that is there.
#
#   tests/setup.sh base    Python's venv module, Node and npm   (make lab, make test)
#   tests/setup.sh test    Chromium and a C compiler            (make test)
#   tests/setup.sh make    make itself                          (.ci/run)
#
# As root it uses apt-get directly, otherwise sudo. It never asks anything.
set -euo pipefail

missing=()

need() { # need PACKAGES TEST...: the packages, unless the test succeeds
  local packages=$1
  shift
  # shellcheck disable=SC2206  # a list of package names, split on purpose
  "$@" >/dev/null 2>&1 || missing+=($packages)
}

has() { command -v "$1"; }

compiles() { # a compiler without the C library's headers is no compiler
  local compiler
  compiler=$(command -v gcc) || return 1
  "$compiler" -xc -fsyntax-only - <<<'#include <stdio.h>'
}

case "${1:-}" in
  base)
    need "python3-venv" "${PYTHON:-python3}" -c "import ensurepip, venv"
    need "nodejs" has node
    need "npm" has npm
    ;;
  test)
    need "chromium fonts-dejavu-core" test -x /usr/bin/chromium
    need "gcc libc6-dev" compiles
    ;;
  make) need "make" has make ;;
  *)
    sed -n '2,8p' "$0" >&2
    exit 2
    ;;
esac

[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Missing: ${missing[*]}. Install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
if ! command -v apt-get >/dev/null; then
  echo "Missing: ${missing[*]}. Install them with your system's package manager." >&2
  exit 1
fi
echo "Installing ${missing[*]} with apt-get ..."
"${as_root[@]}" apt-get -q update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
