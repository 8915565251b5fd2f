"""Who has started this process, where it was no Jupyter server of ours, and what that means."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genv_jupyter.isolation.environ import MARKER, VISIBLE
from genv_jupyter.model import Environment

_HEADLESS = {
    "nbconvert": "nbconvert",
    "papermill": "papermill",
    "execute": "`jupyter execute`",
    "run": "`jupyter run`",
    "console": "`jupyter console`",
    "voila": "Voilà",
}
_SERVERS = ("lab", "labhub", "jupyterlab", "notebook", "server", "jupyter_server", "singleuser")
_GATEWAYS = ("kernelgateway", "kernel_gateway", "enterprisegateway", "enterprise_gateway")
_PREFIX = re.compile("jupyter-|jupyterhub-")

_FIRST = "Attach before anything uses CUDA"


def starter(shell: Any) -> str:
    """Return by what this kernel was started, as ``_unknown_to_us`` knows it, or nothing.

    A kernel's parent process is known by its command line; VS Code leaves its notebook's name.
    """
    if "__vsc_ipynb_file__" in getattr(shell, "user_ns", {}):
        return "VS Code"
    parent = os.environ.get("JPY_PARENT_PID", "")
    try:
        line = Path(f"/proc/{int(parent)}/cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        return ""
    return named(line.split("\0"))


def named(command: Sequence[str]) -> str:
    """Return what a command line starts, as ``starter`` does."""
    before = ""
    for part in command[:4]:
        # A program of that name, `python -m it`, or a verb of jupyter: no other argument.
        if "/" in part or before in ("", "-m", "jupyter"):
            name = _PREFIX.sub("", Path(part).name, count=1)
            if name in _HEADLESS:
                return name
            if name in _SERVERS or name in _GATEWAYS:
                return "server" if name in _SERVERS else "gateway"
        before = Path(part).name
    return ""


def remarks(
    shell: Any, environment: Environment | None, *, terminal: bool, pool: str | None
) -> list[str]:
    """Say so when no Jupyter server of ours has started this process."""
    if environment is not None and environment.server is not None:
        return []
    said = [_unknown_to_us("" if terminal else starter(shell), terminal)]
    if pool is not None:
        said.append(f"Started with {VISIBLE}={pool!r}: only what that names is given to it.")
    return said


def lost(environment: Environment) -> bool:
    """Say whether a server of ours has started this kernel, and its variables did not arrive."""
    return environment.server is not None and MARKER not in os.environ


def loss(environment: Environment, *, mended: bool = False) -> str:
    """Say what has happened then, and what to do."""
    said = (
        "genv-jupyter's variables did not reach this kernel: a gateway or a script on the way "
        "has dropped them."
    )
    if mended:
        return f"{said} They are set now."
    return said if environment.grants else f"{said} So nothing is hidden here. {_FIRST}."


def _unknown_to_us(starter: str, terminal: bool) -> str:
    if terminal:
        return "Not started by us: nothing is hidden here, and grants end with this process."
    if starter in _HEADLESS:
        return (
            f"{_HEADLESS[starter]} has started this kernel, and no Jupyter server: nothing is "
            f"hidden here, and grants end with the run. {_FIRST}, or start the run with "
            "`jupyter gpu run`."
        )
    unkept = "nothing is hidden here, and a restart does not keep grants."
    match starter:
        case "VS Code":
            return (
                f"VS Code has started this kernel by itself: {unkept} {_FIRST}, or let VS Code "
                'use an "Existing Jupyter Server" with genv-jupyter.'
            )
        case "server":
            return (
                f"The Jupyter server has started this kernel without genv-jupyter: {unkept} "
                "Install it where the server runs; a kernelspec that names a provisioner of its "
                "own leaves it out."
            )
        case "gateway":
            return (
                f"A kernel gateway has started this kernel, without genv-jupyter: {unkept} "
                f"{_FIRST}, and again after a restart."
            )
    return (
        "This kernel was not started by a Jupyter server with genv-jupyter: "
        f"{unkept} {_FIRST}, and again after a restart."
    )
