"""``genv.toml``: what the commands and notebooks of a project ask for where they do not say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from genv_jupyter.demand import demand_of, read_request
from genv_jupyter.errors import BadRequest, GpuError
from genv_jupyter.isolation.inherited import DEFAULT_REQUEST
from genv_jupyter.isolation.owners import others_may_write
from genv_jupyter.kernel.document import printable
from genv_jupyter.model import Environment, Request

FILE = "genv.toml"
AMOUNTS = ("gpus", "fraction", "memory")
ALLOWED = {
    "gpus": "a number of whole GPUs such as 1",
    "fraction": "a part of one GPU such as 0.5",
    "memory": 'a size such as "4G", or a number of bytes',
    "name": "a text for others to see",
    "processes": "a whole number from 1 to 48",
    "duration": 'a time such as "2h30m", or a number of seconds',
    "mps": '"auto", "on" or "off"',
}
_MOST = 8 * 1024
"""Bytes of a file that is read: the time of ``tomllib`` grows with the square of a dotted key."""

_LINE = 'A line is: memory = "4G"'
_VALUE = r""" "(?:[^"\\]|\\.)*" | '[^']*' | [^\s#"']+ """


class Project(Struct, frozen=True):
    """A file that was read, and what it asks for; perhaps a name only."""

    path: Path
    request: Request


def find(notes: list[str] | None = None, start: Path | None = None) -> Project | None:
    """Read the ``genv.toml`` of a directory (the working directory), or of one above it.

    The search ends at the first that is found, at the top of a Git repository, at the home
    directory and at the root. A file that somebody else could have written is as if it were not
    there: only one of the user's own, or root's, that others may not write is read.

    Parameters
    ----------
    notes
        Takes a sentence for each file that was passed over.

    Raises
    ------
    BadRequest, OutOfRange
        The file cannot be read, or says what cannot be asked for.
    """
    for directory in _upwards(start):
        path = directory / FILE
        try:
            text = _trusted(path)
        except _NotTrusted as why:
            if notes is not None:
                notes.append(f"{path} is not read: {why}.")
            continue
        if text is not None:
            return Project(path, read(text, path))
    return None


def read(text: str, path: Path) -> Request:
    """Understand the text of a file.

    Raises
    ------
    BadRequest
        It is no TOML, has a key that is not known, or a value that is not allowed.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{path} is not TOML: {error}.", hint=_LINE) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, a thousand brackets
        raise BadRequest(f"{path} says what no request does.", hint=_LINE) from None
    for key, value in found.items():
        if key not in ALLOWED:
            raise BadRequest(
                f"{path} has an unknown key, {key[:40]!r}.", hint=f"It may have {_and(ALLOWED)}."
            )
        _check(path, key, value)
    request = Request(**found)
    if any(key in found for key in AMOUNTS):
        try:
            demand_of(request)
        except GpuError as error:
            raise BadRequest(f"{path}: {error.message}", hint=error.hint) from None
    return request


def filled(request: Request, project: Project | None) -> Request:
    """Fill in what a request leaves open: from the file, then the configured default, then 1.

    Raises
    ------
    BadRequest, OutOfRange
        The configured default is not a request.
    """
    ours = Request() if project is None else project.request
    if not names_amount(request):
        base = ours if names_amount(ours) else _configured()
        amounts = {key: getattr(base, key) for key in AMOUNTS}
        request = msgspec.structs.replace(request, **amounts)
    rest = {
        key: getattr(ours, key)
        for key in ("name", "processes", "duration")
        if getattr(request, key) is None
    }
    if request.mps == "auto":
        rest["mps"] = ours.mps
    return msgspec.structs.replace(request, **rest)


def asked_of(mine: Environment | None, request: Request) -> Request:
    """Return what an attach to a running environment asks for.

    One that names an amount means just that. Else it is what the environment has asked for already
    and, where it has nothing, what ``filled`` says; with what the request says besides.
    """
    if names_amount(request):
        return request
    if mine is not None and mine.request is not None and mine.grants:
        base = mine.request
    else:
        base = filled(Request(), here())
    said = {
        "name": request.name,
        "processes": request.processes,
        "mps": None if request.mps == "auto" else request.mps,
        "duration": request.duration,
        "wait": request.wait,
    }
    more = {key: value for key, value in said.items() if value is not None}
    return msgspec.structs.replace(base, **more)


def here() -> Project | None:
    """Return the file of the working directory, and say on stderr what was passed over."""
    notes: list[str] = []
    found = find(notes)
    for note in notes:
        print(printable(note), file=sys.stderr)
    return found


def save(request: Request, project: Project | None) -> Path:
    """Write what a request says into the file that was found, or into one here.

    What else is in the file stays, comments too; it is replaced in one step.

    Raises
    ------
    BadRequest
        The request names devices, or the file cannot be written, or not without harm.
    """
    savable(request)
    path = Path.cwd() / FILE if project is None else project.path
    said = {key: getattr(request, key) for key in ALLOWED if key != "mps"}
    said["mps"] = None if request.mps == "auto" else request.mps  # said nothing, so it stays
    known = {} if project is None else msgspec.to_builtins(project.request)
    wanted = {key: value for key, value in said.items() if value is not None}
    if names_amount(request):
        known = {key: value for key, value in known.items() if key not in AMOUNTS}
    wanted = known | wanted
    try:
        before = _trusted(path) or ""
        text = _edited(before, wanted)
        _replace(path, text)
    except (OSError, _NotTrusted) as error:
        raise BadRequest(f"{path} was not written: {error}.", hint="Nothing was changed.") from None
    except ValueError:
        lines = "\n".join(_line(key, value) for key, value in wanted.items())
        raise BadRequest(
            f"{path} was not written: it is laid out in a way that is not understood.",
            hint=f"Write it by hand:\n{lines}",
        ) from None
    return path


def savable(request: Request) -> None:
    """Check what is to be saved.

    Raises
    ------
    BadRequest, OutOfRange
        It is no request, or names devices: which of them is free is another matter every day.
    """
    demand_of(request)
    if request.devices:
        raise BadRequest(f"{FILE} holds no devices.", hint="Leave out --device, or --save.")


def _configured() -> Request:
    return read_request(os.environ.get(DEFAULT_REQUEST, "")) or Request(gpus=1)


def names_amount(request: Request) -> bool:
    """Say whether a request says how much, or which."""
    return bool(request.devices) or any(getattr(request, key) is not None for key in AMOUNTS)


def _check(path: Path, key: str, value: Any) -> None:
    what = f"{path}: {key} is {ALLOWED[key]}, not {str(value)[:40]!r}."
    try:
        one = msgspec.convert({key: value}, Request)
        demand_of(one if key in AMOUNTS else msgspec.structs.replace(one, gpus=1))
    except msgspec.ValidationError:
        raise BadRequest(what, hint="Correct it there.") from None
    except GpuError as error:
        raise BadRequest(what, hint=error.message) from None


# -- finding and trusting ---------------------------------------------------------------------


class _NotTrusted(Exception):
    """Why a file is passed over."""


def _upwards(start: Path | None) -> Iterator[Path]:
    try:
        here = Path.cwd() if start is None else start
    except OSError:  # the working directory is gone
        return
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (Path.home raises where there is none)
    for directory in (here, *here.parents):
        yield directory
        if directory == home or _is_there(directory / ".git"):
            return


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a directory above that is closed to us
        return False


def _trusted(path: Path) -> str | None:
    """Return a file's text; ``None`` where there is none."""
    try:
        _check_owner(path.lstat())  # a link is as good as whoever laid it
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _NotTrusted(error.strerror or str(error)) from None
    try:
        found = os.fstat(descriptor)
        _check_owner(found)
        if not stat.S_ISREG(found.st_mode):
            raise _NotTrusted("it is no regular file")
        if others_may_write(found):
            raise _NotTrusted("others may write it (`chmod go-w` it if it is yours)")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(_MOST + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MOST:
        raise _NotTrusted("it is too large")
    try:
        return content.decode("utf-8-sig")  # editors of Windows begin with a mark
    except UnicodeDecodeError:
        raise _NotTrusted("it is no text in UTF-8") from None


def _check_owner(found: os.stat_result) -> None:
    if found.st_uid not in (os.getuid(), 0):
        raise _NotTrusted(f"it belongs to uid {found.st_uid}")


# -- writing ------------------------------------------------------------------------------------


def _edited(before: str, wanted: Mapping[str, Any]) -> str:
    """Return the text with other values; raises ``ValueError`` where that is not what came out."""
    lines, left = [], dict(wanted)
    for line in before.splitlines(keepends=True):
        found = re.fullmatch(rf"(\s*(\w+)\s*=\s*)(?x:{_VALUE})(\s*#.*)?(\s*)", line)
        if found is None or found[2] not in ALLOWED:
            lines.append(line)
        elif found[2] in left:
            value = _literal(left.pop(found[2]))
            lines.append(f"{found[1]}{value}{found[3] or ''}{found[4]}")
        elif found[3]:
            lines.append(f"{found[3].strip()}{found[4]}")
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    text = "".join([*lines, *(f"{_line(key, value)}\n" for key, value in left.items())])
    if tomllib.loads(text) != dict(wanted):
        raise ValueError("the file says something else")
    return text


def _line(key: str, value: Any) -> str:
    return f"{key} = {_literal(value)}"


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # of numbers and texts, what TOML has too


def _replace(path: Path, text: str) -> None:
    target = path.resolve()
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE}-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):  # what happened first is what is told
            Path(temporary).unlink()
        raise


def _and(names: Mapping[str, str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}"
