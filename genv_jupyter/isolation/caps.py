"""The memory of a grant as frameworks read it: variables, merged with what somebody has set.

The broker says how much (``GENV_JUPYTER_MEMORY_LIMIT``); which variable a framework honours depends
on its version, so that is decided where the process is, from the versions its Python would import.
Nothing is imported for it, and what was there before is kept beside it and comes back.

Standard library only, and no syntax newer than Python 3.8: the server sends this very file to
kernels of other Python environments, where nothing of ours is installed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Iterable, Mapping, MutableMapping, Tuple  # noqa: UP035 (Python 3.8)

LIMIT = "GENV_JUPYTER_MEMORY_LIMIT"
"""Bytes on each visible device, in the order of ``CUDA_VISIBLE_DEVICES``; empty: no limit there."""

TOTAL = "GENV_JUPYTER_MEMORY_TOTAL"
"""Bytes of each visible device as NVML tells them: physical, or the partition; empty: unknown."""

BEFORE = "GENV_JUPYTER_MEMORY_BEFORE"
"""What we have changed: JSON, name → [value before, value of ours], ``null`` for unset."""

CONTEXT = 512 * 2**20
"""Bytes of a limit that are left to CUDA: its context takes 300 to 500 MiB outside any framework's
allocator, and cuBLAS's workspaces come on top."""

CUPY = "CUPY_GPU_MEMORY_LIMIT"
TENSORFLOW = "TF_FORCE_GPU_ALLOW_GROWTH"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
JAX, OLD_JAX = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
TORCH, OLD_TORCH = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"

_TORCH_KEY = "per_process_memory_fraction"
_TORCH_KNOWS_KEY = (2, 10, 0)  # 2.9.1 refuses to start with it: "Unrecognized key"
_JAX_KNOWS_NAME = (0, 4, 33)  # absent from the wheel of 0.4.31; 0.4.32 was never published
_FINAL, _EARLY = 0, -1
_RELEASE = re.compile(
    r"(torch|jaxlib)-(\d+)\.(\d+)(?:\.(\d+))?([^-]*)(?:-py[\d.]+)?\.(?:dist|egg)-info"
)
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")

Version = Tuple[int, ...]  # noqa: UP006 (Python 3.8)


def settle(env: MutableMapping[str, str], versions: Mapping[str, Version]) -> None:
    """Set what frameworks honour for the limits that an environment names.

    What an earlier call has set is taken back first; where somebody has set something stricter,
    that stays. Without a limit only the taking back is left.

    Parameters
    ----------
    versions
        As ``installed`` returns it; of what is not in it, only the variables that every version
        understands are set.
    """
    restore(env)
    size, part = budget(env), fraction(env)
    if size is None:
        return
    wanted: dict[str, str | None] = {TENSORFLOW: "true", CUPY: _cupy(env, size)}
    if env.get(PREALLOCATE) not in ("false", "False", "0"):
        wanted[PREALLOCATE] = "false"
    if part is not None and "jaxlib" in versions:
        wanted.update(_jax(env, part, versions["jaxlib"]))
    if part is not None and versions.get("torch", ()) >= _TORCH_KNOWS_KEY:
        wanted.update(_torch(env, part))
    before = {}
    for name, value in wanted.items():
        if env.get(name) != value:
            before[name] = [env.get(name), value]
            _put(env, name, value)
    if before:
        env[BEFORE] = json.dumps(before)


def restore(env: MutableMapping[str, str]) -> None:
    """Take back what ``settle`` has set, unless somebody has changed it since."""
    try:
        changed = json.loads(env.pop(BEFORE, "{}"))
        for name, (before, ours) in changed.items():
            if env.get(name) == ours:
                _put(env, name, before)
    except (ValueError, TypeError, AttributeError):  # not our text any more: it tells us nothing
        return


def budgets(env: Mapping[str, str]) -> list[int | None]:
    """Return what allocators may take on each visible device: the limit less CUDA's own part."""
    limits = _numbers(env.get(LIMIT))
    return [None if n is None else max(n - CONTEXT, n // 2) for n in limits]


def budget(env: Mapping[str, str]) -> int | None:
    """Return the smallest of ``budgets``, for frameworks that know one number; in bytes."""
    return min((size for size in budgets(env) if size is not None), default=None)


def fraction(env: Mapping[str, str]) -> str | None:
    """Return the smallest of ``budgets`` over its device's total, as a number, rounded down."""
    totals = _numbers(env.get(TOTAL))
    parts = [
        max(1, size * 10_000 // total)
        for size, total in zip(budgets(env), totals)  # noqa: B905 (Python 3.8)
        if size is not None and total
    ]
    return f"{min(min(parts), 10_000) / 10_000:.4f}" if parts else None


def torch_fraction(env: Mapping[str, str]) -> float:
    """Return the fraction that somebody else than us asks of PyTorch by variable; 1 is none."""
    theirs = dict(env)
    restore(theirs)
    for item in _PART.findall(theirs.get(OLD_TORCH) or theirs.get(TORCH) or ""):
        key, _, value = item.partition(":")
        if key.strip() == _TORCH_KEY:
            return _number(value, 1.0)
    return 1.0


def installed(paths: Iterable[str] | None = None) -> dict[str, Version]:
    """Return the versions of the frameworks that a Python with these paths would import.

    Parameters
    ----------
    paths
        This Python's own by default.

    Returns
    -------
    dict
        Of ``torch`` and ``jaxlib``: major, minor, patch; for what came before a release the patch
        is -1, since it may lack what the release has.
    """
    found: dict[str, Version] = {}
    for path in sys.path if paths is None else paths:
        missing = [name for name in ("torch", "jaxlib") if name not in found]
        # One look each, so that a directory of many files is listed only where they are.
        if not any(os.path.isdir(os.path.join(path, name)) for name in missing):  # noqa: PTH112, PTH118
            continue
        for entry in _listed(path):
            match = _RELEASE.fullmatch(entry)
            if match and match.group(1) in missing:
                early = re.match(r"\.?(a|b|rc|dev)", match.group(5))
                patch = _EARLY if early else int(match.group(4) or _FINAL)
                found[match.group(1)] = (int(match.group(2)), int(match.group(3)), patch)
    return found


def beside(program: str) -> list[str]:
    """Return where a program looks for packages that stands in the ``bin`` of a Python environment.

    Parameters
    ----------
    program
        Its path: ``.../bin/python``, ``.../bin/papermill``. A link is not followed, since that is
        how an environment has its interpreter.
    """
    library = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(program))), "lib")  # noqa: PTH100, PTH118, PTH120
    return [
        os.path.join(library, name, packages)  # noqa: PTH118
        for name in sorted(_listed(library))
        if name.startswith("python3")
        for packages in ("site-packages", "dist-packages")
    ]


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path or ".")  # noqa: PTH208 (no import for one look)
    except OSError:  # it may not be read: then nothing is imported from it
        return []


def _put(env: MutableMapping[str, str], name: str, value: str | None) -> None:
    if value is None:
        env.pop(name, None)
    else:
        env[name] = value


def _cupy(env: Mapping[str, str], size: int) -> str:
    """Return bytes; theirs may be a percentage of the total, and 0 means no limit."""
    theirs = env.get(CUPY, "")
    value = _number(theirs[:-1] if theirs.endswith("%") else theirs, 0)
    if theirs.endswith("%"):
        total = min((n for n in _numbers(env.get(TOTAL)) if n), default=0)
        value = value * total / 100
    return theirs if 0 < value <= size else str(size)


def _jax(env: Mapping[str, str], part: str, version: Version) -> dict[str, str | None]:
    """Return one of the two names: with both set, JAX refuses to use a GPU."""
    name, other = (JAX, OLD_JAX) if version >= _JAX_KNOWS_NAME else (OLD_JAX, JAX)
    if other not in env:
        return {name: _stricter(env.get(name), part)}
    if name == JAX and name not in env:
        return {other: _stricter(env[other], part)}  # the old name alone is still honoured
    return {name: _stricter(env.get(name), _stricter(env[other], part)), other: None}


def _torch(env: Mapping[str, str], part: str) -> dict[str, str | None]:
    """Return the configuration of PyTorch's allocator with our key in it.

    Where both names are set, PyTorch reads the old one.
    """
    name = OLD_TORCH if OLD_TORCH in env else TORCH
    items = _PART.findall(env.get(name, ""))
    ours = [item for item in items if item.partition(":")[0].strip() == _TORCH_KEY]
    others = [item for item in items if item not in ours]
    theirs = ours[-1].partition(":")[2].strip() if ours else None
    value = _stricter(theirs, part)
    if value == theirs:
        return {name: env[name]}
    return {name: ",".join([*others, f"{_TORCH_KEY}:{value}"])}


def _stricter(theirs: str | None, ours: str) -> str:
    value = _number(theirs, 0)
    return theirs if theirs is not None and 0 < value <= float(ours) else ours


def _number(text: str | None, otherwise: float) -> float:
    try:
        return float(text or "")
    except ValueError:
        return otherwise


def _numbers(text: str | None) -> list[int | None]:
    return [int(word) if word.isdigit() else None for word in (text or "").split(",")]
