"""Where the command ``jupyter-gpu`` begins: it says so where only the kernel part is installed."""

from __future__ import annotations

import signal
import sys

_MISSING_STATUS = 3


def main() -> None:
    """Run ``jupyter gpu``."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is begun: no traceback of imports
    try:
        from genv_jupyter.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "genv_jupyter").startswith("genv_jupyter"):
            raise
        print(
            f"Error: `jupyter gpu` cannot run in this Python environment ({error}): only the "
            "kernel part of genv-jupyter is installed here. Use %gpu in IPython, or "
            "`pip install genv-jupyter` here.",
            file=sys.stderr,
        )
        raise SystemExit(_MISSING_STATUS) from None
    signal.signal(signal.SIGINT, before)
    run()
