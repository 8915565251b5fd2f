"""Tab and ``?`` behind ``%gpu``: its verbs, options and devices, and none of Python's names."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from genv_jupyter.api.client import Client
from genv_jupyter.errors import GpuError
from genv_jupyter.kernel import parsing
from genv_jupyter_stub import asked

IDENTIFIER = "genv_jupyter"
PATIENCE = 1.0
"""Seconds that a Tab waits for the broker."""
_LINE = re.compile(r"\s*(?:[^\W\d]\w*\s*=\s*)?(%%?)gpu\s+(.*)", re.DOTALL)


@context_matcher(identifier=IDENTIFIER)  # type: ignore[untyped-decorator]
def match(context: CompletionContext) -> SimpleMatcherResult:
    """Complete a line of ``%gpu``; a matcher, since IPython lets Jedi add to what a hook says."""
    found = [word for word in candidates(context.text_until_cursor) if word != context.token]
    return {
        "completions": [
            SimpleCompletion(word, type="option" if word.startswith("-") else "verb")
            for word in found
            if word.startswith(context.token)
        ],
        "suppress": True,
        "ordered": True,
    }


def candidates(line: str) -> tuple[str, ...]:
    """Return what may stand where a line that was begun ends."""
    begun = _LINE.fullmatch(line)
    if begun is None:
        return ()
    words = begun[2].split()
    if words and not begun[2][-1].isspace():
        words.pop()  # it is being written
    cell = begun[1] == "%%"
    options = {"turn": ("--timeout",)} if cell else parsing.OPTIONS
    if not words:
        return ("turn",) if cell else parsing.VERBS
    if words[-1] in ("--device", "-d") and "--device" in options.get(words[0], ()):
        return devices()
    return tuple(word for word in options.get(words[0], ()) if word not in words)


def devices() -> tuple[str, ...]:
    """Return the devices as they are called here; none where the broker is not there to ask."""
    try:
        found = Client(start=False, timeout=PATIENCE).devices()
    except GpuError:
        return ()  # a Tab starts no broker, and is no place for its troubles
    return tuple(one.uuid if one.index is None else str(one.index) for one in found)


def install(shell: Any) -> None:
    """Add both to a shell, once."""
    uninstall(shell)
    shell.Completer.custom_matchers.append(match)
    shell.input_transformers_cleanup.append(asked)


def uninstall(shell: Any) -> None:
    """Take both away again."""
    transformers = shell.input_transformers_cleanup
    transformers[:] = [one for one in transformers if one is not asked]
    others = [
        one
        for one in shell.Completer.custom_matchers
        if getattr(one, "matcher_identifier", None) != IDENTIFIER
    ]
    shell.Completer.custom_matchers[:] = others
