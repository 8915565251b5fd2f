"""Shared NVIDIA GPUs for Jupyter.

Importing this module costs nothing: what it offers is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genv_jupyter.api.client import Client
    from genv_jupyter.kernel.turn import turn

__version__ = "0.1.0"
__all__ = ["Client", "__version__", "turn"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from genv_jupyter.api.client import Client

        return Client
    if name == "turn":
        from genv_jupyter.kernel.turn import turn

        return turn
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "genv-jupyter"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from genv_jupyter.server.app import GenvJupyterApp

    return [{"module": "genv_jupyter.server.app", "app": GenvJupyterApp}]


def load_ipython_extension(ipython: Any) -> None:
    """Make ``%gpu`` available (``%load_ext genv_jupyter``)."""
    from genv_jupyter.kernel.magics import load_ipython_extension as load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take ``%gpu`` back (``%unload_ext genv_jupyter``)."""
    from genv_jupyter.kernel.magics import unload_ipython_extension as unload

    unload(ipython)
