"""What a notebook's metadata asks for: ``genv_jupyter.request``, as the sidebar writes it."""

from __future__ import annotations

import asyncio
import os
import stat

import msgspec
from msgspec import Struct

from genv_jupyter.demand import demand_of
from genv_jupyter.errors import BadRequest
from genv_jupyter.model import Request

READ_SECONDS = 0.5
"""For which the start of a kernel waits for the notebook's disk."""

MOST_BYTES = 64 * 2**20
"""A larger notebook is not read: its kernel would start late."""

_HINT = "Correct metadata.genv_jupyter in the notebook, or attach something else."


class _Kept(Struct):
    request: Request | None = None


class _Metadata(Struct):
    genv_jupyter: _Kept | None = None


class _Notebook(Struct):
    metadata: _Metadata | None = None


async def remembered(path: str | None) -> Request | None:
    """Return what the notebook at a path asks for; ``None`` where that is nothing.

    A notebook that cannot be read, or not soon, asks for nothing: its kernel starts all the same.

    Raises
    ------
    BadRequest, OutOfRange
        It asks for what is no request.
    """
    if path is None or not path.endswith(".ipynb"):
        return None
    try:
        text = await asyncio.wait_for(asyncio.to_thread(_read, path), READ_SECONDS)
    except (OSError, TimeoutError):
        return None
    if text is None:
        return None
    try:
        kept = msgspec.json.decode(text, type=_Notebook)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"The notebook's GPU request cannot be read: {error}.", hint=_HINT
        ) from None
    except msgspec.DecodeError:
        return None  # no notebook: Jupyter says so itself when it is opened
    if kept.metadata is None or kept.metadata.genv_jupyter is None:
        return None
    request = kept.metadata.genv_jupyter.request
    if request is not None:
        demand_of(request)
    return request


def _read(path: str) -> bytes | None:
    """Return a file's bytes, if it is a plain file of a bearable size."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        return file.read(MOST_BYTES)
