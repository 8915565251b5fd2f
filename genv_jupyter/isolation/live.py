"""Setting the variables of a grant inside a living process, and asking whether it is too late.

Standard library only, and no syntax newer than Python 3.8: the server sends this very file, behind
``caps.py``, to kernels of other Python environments, where nothing of ours is installed. Nothing
here initialises CUDA, or even loads its library.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
import threading
from typing import Any, Mapping, MutableMapping, Sequence  # noqa: UP035 (Python 3.8 runs this too)

from genv_jupyter.isolation.caps import LIMIT, TOTAL, installed, settle

_NOT_SENT = (
    "from __future__ import annotations\n",
    "from genv_jupyter.isolation.caps import LIMIT, TOTAL, installed, settle\n",
)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MARKER = "GENV_JUPYTER_ENVIRONMENT"
_REVISION = "GENV_JUPYTER_REVISION"
_NOT_INITIALIZED = 3
_DIGITS = 19
_REMEMBERING = ("jax", "tensorflow")
_THROUGH_RUNTIME = ("torch", "cupy")
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"

PROGRAMS = "GENV_JUPYTER_PROGRAMS"
"""Holds the directory that is first in PATH: of the environment's own ``nvidia-smi``."""
_PATIENT = (
    *(LIMIT, TOTAL, PROGRAMS, _REVISION),
    *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
)
"""Variables that do not change what CUDA sees. It does not read them, or (of MPS) has read them:
children that start from now on have the new limits, and the process has them from its restart."""

BROKERS = frozenset((_MARKER, _VISIBLE, "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY", *_PATIENT))
"""All that a broker decides for a process, each by its name: whoever took over that of a host could
run what they like by ``LD_PRELOAD``, and by ``GENV_JUPYTER_MEMORY_BEFORE``, which puts any back."""

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


def seen() -> list[str] | None:
    """Ask an initialised CUDA for the devices it sees; that makes no context and takes no memory.

    Returns
    -------
    list of str or None
        The digits of the UUIDs (of MIG instances, theirs) in CUDA's order. ``None`` where CUDA is
        not initialised or cannot say: in a fork of a process that had initialised it.
    """
    driver = _loaded_driver()
    count = ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)):
        return None
    get = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    found = []
    for ordinal in range(count.value):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if driver.cuDeviceGet(ctypes.byref(device), ordinal) or get(uuid, device):
            return None
        found.append(bytes(uuid).hex())
    return found


def digits(uuid: str) -> str:
    """Return a device's UUID as ``seen`` has it: without its prefix and dashes."""
    return uuid.partition("-")[2].replace("-", "").lower()


def apply_environ(environ: Mapping[str, str | None]) -> dict[str, Any]:
    """Set variables (``None`` unsets one) if CUDA can still see the change.

    Where CUDA is initialised nothing is changed, so that children started from now on see the same
    devices as the process itself. Nor is anything where the process has a later revision already:
    variables that waited in a queue may come after those that replaced them.

    Returns
    -------
    dict
        ``cuda`` as ``cuda_state``; ``applied``: ``live``, or ``at_restart`` when the values differ
        and CUDA would not see them; ``visible``: what ``CUDA_VISIBLE_DEVICES`` is now;
        ``revision``: which variables this speaks of; ``stubborn``: as ``stubborn`` says, before the
        change; ``told``: what was said to frameworks that hold memory already, one sentence each.
    """
    # The server's thread and the user's may come together, each with its own copy of this module.
    lock = vars(sys).setdefault(f"_genv_jupyter_{os.getpid()}", threading.RLock())
    with lock:
        return _applied(accepted(environ))


def accepted(environ: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return what a broker may decide of what it has answered: the broker of a host is not ours.

    A directory of programs is taken out of PATH where others could put a program into it.
    """
    kept = {name: value for name, value in environ.items() if name in BROKERS}
    programs = kept.get(PROGRAMS)
    if programs is not None and not trusted(programs):
        kept[PROGRAMS] = None
    return kept


def trusted(directory: str) -> bool:
    """Say whether only root and this user decide what programs are in a directory, and which it is.

    For one's own, at its real place, what lies above it does not matter: nobody else can have made
    it, and in containers ``/`` may be nobody's.
    """
    if not directory.startswith("/") or os.pathsep in directory:
        return False
    me = os.getuid()
    try:
        real = os.path.realpath(directory)
        found = os.stat(real)  # noqa: PTH116
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
            return False
        if found.st_uid == me != 0 and real == directory:
            return True
        return all(_kept(place, me) for way in (directory, real) for place in _above(way))
    except (OSError, ValueError):  # it is not there, as in a container, or is no path
        return False


def _above(path: str) -> list[str]:
    """Return a path and all that it lies in."""
    parts = path.split("/")
    return ["/".join(parts[:end]) or "/" for end in range(1, len(parts) + 1)]


def _kept(path: str, me: int) -> bool:
    """Say whether nobody but root and this user can put another thing in the place of one there."""
    found = os.lstat(path)
    if found.st_uid not in (0, me):
        return False
    # Many systems give each user a group alone, and let it write.
    others = stat.S_IWOTH | (stat.S_IWGRP if found.st_uid == 0 else 0)
    fixed = stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX
    return bool(fixed) or not found.st_mode & others


def _applied(environ: Mapping[str, str | None]) -> dict[str, Any]:
    cuda = cuda_state()
    remembering = stubborn()
    applied, told = "live", []
    revision = _revision(environ)
    there = _revision(os.environ) if os.environ.get(_MARKER) == environ.get(_MARKER) else None
    changed = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    devices = {name: value for name, value in changed.items() if name not in _PATIENT}
    if revision is not None and there is not None and revision < there:
        revision = there
    elif devices and cuda == "initialized" and not _only_edited(devices):
        applied = "at_restart"
    else:
        if PROGRAMS in environ:
            put_first(os.environ, environ[PROGRAMS])
        _set_variables(changed)
        # Our stub, where it is loaded, watches for cells that overwrite the variable: this is none.
        stub = getattr(sys.modules.get("genv_jupyter_stub"), "stub", None)
        if stub is not None and _VISIBLE in environ:
            stub.expected, stub.told = environ[_VISIBLE], False
            if _VISIBLE in changed:
                stub.remembering, stub.warned = remembering, False
        if LIMIT in environ:
            told = _keep_to_cap(stub)
    return {
        "cuda": cuda,
        "applied": applied,
        "visible": os.environ.get(_VISIBLE),
        "revision": revision,
        "stubborn": remembering,
        "told": told,
    }


def put_first(environ: MutableMapping[str, str], programs: str | None) -> None:
    """Put the directory of our programs first in PATH, in the place of an earlier one of ours."""
    before = environ.get("PATH", os.defpath)
    ours = (environ.get(PROGRAMS), programs)
    kept = [part for part in before.split(os.pathsep) if part not in ours]
    after = os.pathsep.join(kept if programs is None else [programs, *kept])
    if after != before:
        environ["PATH"] = after


def _keep_to_cap(stub: Any) -> list[str]:
    """Tell frameworks what memory they may take now: by hooks too where our stub is."""
    if hasattr(stub, "follow"):
        return list(stub.follow())
    settle(os.environ, installed())
    return []


def _set_variables(changed: Mapping[str, str | None]) -> None:
    for name, value in changed.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    if _VISIBLE in changed:
        _look_again(changed[_VISIBLE])


def _revision(environ: Mapping[str, str | None]) -> int | None:
    value = environ.get(_REVISION) or ""
    return int(value) if value.isdecimal() and len(value) < _DIGITS else None


def _only_edited(changed: Mapping[str, str | None]) -> bool:
    """Say whether an initialised CUDA sees what the variable is to name: only a cell changed it."""
    wanted = changed.get(_VISIBLE)
    if wanted is None or len(changed) > 1:
        return False
    return seen() == [digits(uuid) for uuid in wanted.split(",")]


def _look_again(visible: str | None) -> None:
    """Let PyTorch count the devices anew, and without CUDA's runtime where there is none."""
    if visible == "":
        os.environ.setdefault(_NVML_CHECK, "1")
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    # Older versions of it remember the number, whoever was asked.
    forget = getattr(getattr(cuda, "device_count", None), "cache_clear", None)
    if forget is not None:
        forget()


def stubborn() -> list[str]:
    """Return what was loaded while the devices are hidden, and may look no more if it has looked.

    JAX and TensorFlow remember "no GPU", and so does CUDA's runtime, on which PyTorch and CuPy are
    built. Whether the driver does after a ``cuInit`` that found none is not documented, and whether
    one was tried cannot be asked.
    """
    if os.environ.get(_VISIBLE) != "":
        return []
    found = [name for name in _REMEMBERING if name in sys.modules]
    if cuda_state() == "not_initialized":
        if _runtime_has_given_up():
            found += [name for name in _THROUGH_RUNTIME if name in sys.modules] or ["CUDA"]
        elif _loaded_driver() is not None:
            found.append("CUDA")
    return found


def remembered(names: Sequence[str]) -> str:
    """Say what being stubborn means, of those that ``stubborn`` has named."""
    was = "was" if len(names) == 1 else "were"
    return (
        f"{' and '.join(names)} {was} loaded while GPUs were hidden here: what has looked for one "
        "already sees none until the kernel is restarted (the grant is kept)."
    )


def _runtime_has_given_up() -> bool:
    """Say whether CUDA's runtime is here and has, it seems, looked for devices in vain.

    It cannot be asked, since it looks when asked. But it unloads the driver when the driver finds
    no device (seen with versions 12 and 13), and Python unloads no library at all.
    """
    if not any(name in sys.modules for name in _THROUGH_RUNTIME):
        with open("/proc/self/maps", encoding="utf-8") as lines:  # noqa: PTH123
            if not any("libcudart" in line for line in lines):
                return False
    return _unloaded() > 0


class _Library(ctypes.Structure):
    """The ``dl_phdr_info`` of the C library."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
        ("loaded", ctypes.c_ulonglong),
        ("unloaded", ctypes.c_ulonglong),
    )


def _unloaded() -> int:
    """Return how many libraries this process has unloaded since it started."""
    counts = []

    def first(library: Any, size: int, data: Any) -> int:
        counts.append(library.contents.unloaded)
        return 1  # the numbers are the process's: one library is enough

    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p
    )
    ctypes.CDLL(None).dl_iterate_phdr(kind(first), None)
    return int(counts[0])


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
            text = file.read()
        for line in _NOT_SENT:
            text = text.replace(line, "", 1)
        caps = os.path.join(os.path.dirname(__file__), "caps.py")  # noqa: PTH118, PTH120
        with open(caps, encoding="utf-8") as file:  # noqa: PTH123
            return file.read() + text
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
