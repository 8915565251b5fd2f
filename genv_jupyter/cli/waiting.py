"""Waiting until an environment is as it should be, as the broker tells of changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from genv_jupyter.api.client import Client
from genv_jupyter.kernel.changes import Changes
from genv_jupyter.model import Environment


def until(
    client: Client,
    look: Callable[[], Environment],
    done: Callable[[Environment], bool],
    limit: float,
) -> Environment:
    """Return an environment as soon as it is as it should be, or as it is after the time limit."""
    deadline = time.monotonic() + limit
    with Changes(client) as changes:
        while True:
            found = look()
            left = deadline - time.monotonic()
            if done(found) or left <= 0:
                return found
            changes.wait(left)
