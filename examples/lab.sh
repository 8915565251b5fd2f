#!/usr/bin/env bash
# Opens JupyterLab on the quickstart. Simulated GPUs only where this machine has no NVIDIA driver:
# a driver that is there and broken is an error to see, not to paper over.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# What the kernel says. A node in /dev is no sign: NVIDIA's libraries make them without a driver.
has_driver() {
  [ -e /proc/driver/nvidia/version ] || [ -d /sys/module/nvidia ] ||
    [ -e /sys/module/nvgpu ] || [ -e /usr/lib/wsl/lib/libcuda.so.1 ]
}

if [ -n "${GENV_JUPYTER_SIMULATE:-}" ]; then
  echo "SIMULATED GPUs, as GENV_JUPYTER_SIMULATE asks: $GENV_JUPYTER_SIMULATE"
elif has_driver; then
  echo "An NVIDIA driver is here: JupyterLab opens with the real GPUs of this machine."
else
  export GENV_JUPYTER_SIMULATE=2x24GiB
  echo "No NVIDIA driver is here: JupyterLab opens with two SIMULATED GPUs (2x24GiB)."
  echo "Everything can be tried except computing on them."
fi

args=(--ServerApp.root_dir=. --LabApp.default_url=/lab/tree/quickstart.ipynb)
# Without a terminal of its own the server would start login shells, whose profile may reset PATH:
# `jupyter gpu` would not be found in JupyterLab's terminals.
args+=("--ServerApp.terminado_settings=shell_command=${SHELL:-bash}")
[ "$(id -u)" -ne 0 ] || args+=(--allow-root)
if [ -z "${DISPLAY:-}${WAYLAND_DISPLAY:-}${BROWSER:-}" ]; then
  args+=(--no-browser)
  echo "No display was found: open the address below in a browser."
fi
exec jupyter lab "${args[@]}" "$@"
