"""Setting the variables of a grant inside a living process, and asking whether it is too late.

Standard library only, and no syntax newer than Python 3.8: the server sends this very file to
kernels of other Python environments, where nothing of ours is installed. Nothing here initialises
CUDA, or even loads its library.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, Mapping  # noqa: UP035 (Python 3.8 runs this too)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NOT_INITIALIZED = 3
_REMEMBERING = ("jax", "tensorflow")

_seen_initialized = False
"""Never goes back. A forked child answers "not initialised" although CUDA can never work in it:
this crosses the fork, the driver's state does not."""


def cuda_state() -> str:
    """Say whether CUDA has read its variables in this process, without making it do so.

    Returns
    -------
    str
        ``initialized`` or ``not_initialized``. A ``cuInit`` that failed because the devices were
        hidden leaves the driver uninitialised.
    """
    global _seen_initialized
    if not _seen_initialized:
        driver = _loaded_driver()
        if driver is not None:
            count = ctypes.byref(ctypes.c_int())
            _seen_initialized = driver.cuDeviceGetCount(count) != _NOT_INITIALIZED
    return "initialized" if _seen_initialized else "not_initialized"


def _loaded_driver() -> Any:
    """Return CUDA's library if somebody has loaded it; never load it."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def apply_environ(environ: Mapping[str, str | None]) -> dict[str, Any]:
    """Set variables (``None`` unsets one) if CUDA can still see the change.

    Where CUDA is initialised nothing is changed, so that children started from now on see the same
    devices as the process itself.

    Returns
    -------
    dict
        ``cuda`` as ``cuda_state``; ``applied``: ``live``, or ``at_restart`` when the values differ
        and CUDA would not see them; ``visible``: what ``CUDA_VISIBLE_DEVICES`` is now;
        ``stubborn``: as ``stubborn`` says, before the change.
    """
    cuda = cuda_state()
    remembering = stubborn()
    changed = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    applied = "live"
    if changed and cuda == "initialized":
        applied = "at_restart"
    else:
        for name, value in changed.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    # Our stub, where it is loaded, watches for cells that overwrite the variable: this is not one.
    stub = getattr(sys.modules.get("genv_jupyter_stub"), "stub", None)
    if stub is not None and applied == "live" and _VISIBLE in environ:
        stub.expected, stub.told = environ[_VISIBLE], False
    return {
        "cuda": cuda,
        "applied": applied,
        "visible": os.environ.get(_VISIBLE),
        "stubborn": remembering,
    }


def stubborn() -> list[str]:
    """Return what was loaded while the devices are hidden, and may look no more if it has looked.

    JAX and TensorFlow remember "no GPU"; whether CUDA does after a ``cuInit`` that found none is
    not documented, and whether one was tried cannot be asked.
    """
    if os.environ.get(_VISIBLE) != "":
        return []
    found = [name for name in _REMEMBERING if name in sys.modules]
    if cuda_state() == "not_initialized" and _loaded_driver() is not None:
        found.append("CUDA")
    return found


def expression(environ: Mapping[str, str | None] | None) -> str:
    """Return a Python expression that does this in another kernel and leaves no name behind.

    Made for ``user_expressions`` of a silent execute request. Its value is a JSON text: what
    ``apply_environ`` returns, or, for ``None``, only ``{"cuda": ...}``.
    """
    call = (
        'json.dumps({"cuda": cuda_state()})'
        if environ is None
        else f"json.dumps(apply_environ(json.loads({json.dumps(dict(environ))!r})))"
    )
    source = __getattr__("SNIPPET")
    run = f"(lambda space: (exec({source!r}, space), eval({call!r}, space))[1])"
    return run + '({"__name__": "genv_jupyter_live"})'


def __getattr__(name: str) -> str:
    if name == "SNIPPET":
        with open(__file__, encoding="utf-8") as file:  # noqa: PTH123 (no import for one read)
            return file.read()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
