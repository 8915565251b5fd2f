"""Reading what was typed after ``%gpu``."""

from __future__ import annotations

import argparse
import difflib
import shlex
from typing import Any, NoReturn

from msgspec import Struct

from genv_jupyter.errors import BadRequest
from genv_jupyter.model import Mps, Request
from genv_jupyter.units import WHOLE, parse_duration, parse_share

VERBS = (
    *("status", "attach", "detach", "release", "devices", "envs", "usage", "panel"),
    *("queue", "leave", "extend", "ask"),
    *("watch", "empty-cache", "keep", "quota", "doctor", "help"),
)
OPTIONS = {
    "attach": (
        *("--memory", "--device", "--name", "--processes", "--mps", "--no-mps"),
        *("--for", "--wait", "--restart", "--save"),
    ),
    "detach": ("--device", "--restart"),
    "release": ("--device", "--restart"),
    "watch": ("off",),
}
TEXT = """\
%gpu                         what this kernel has, and what is free
%gpu attach 0.5              half of a GPU: of its memory, and of compute
%gpu attach 1                a whole GPU, for this kernel alone (2: two of them)
%gpu attach --memory 4G      a place of 4 GB on a shared GPU, no compute ceiling
      --device D             this GPU: index, UUID, or the beginning of a UUID
      --name N               a name for others to see (else the notebook's)
      --processes P          divided among P processes of yours
      --mps, --no-mps        only under NVIDIA MPS, or without it
      --for 2h               a lease: until when you have it
      --wait, --wait 30m     in the queue until there is room (or Ctrl-C)
      --restart              restart the kernel, if that is what it takes
      --save                 keep it in genv.toml: `attach` alone asks for it
%gpu release                 give everything back (also: %gpu detach)
      --device D             give one GPU back
      --restart              restart the kernel, if its CUDA still holds the GPU
%gpu keep                    keep it though idle: the countdown begins anew
%gpu extend 1h               have the lease end later
%gpu queue                   who waits for what, in which place
%gpu leave                   leave the queue
%gpu ask [MESSAGE]           ask who holds what you need: how long still?
%gpu devices                 every GPU: how full, who holds how much since when
%gpu envs                    every environment: notebooks, terminals, commands
%gpu usage                   what is really used of it, the peak, and advice
%gpu panel                   the same in a panel with buttons (ipywidgets)
%gpu watch                   a live line of it under cells that run for long
%gpu watch off               no longer
%gpu empty-cache             let go of old outputs and of what frameworks keep
%%gpu turn                   run this cell when its turn on a shared GPU comes
      --timeout 5m           not at all, if that takes longer
%gpu quota                   what you may have, have, and have left
%gpu doctor                  driver, pool, broker, and how strong limits are"""
"""What ``%gpu?`` shows, and ``%gpu help`` with some notes."""

_MPS: dict[bool | None, Mps] = {None: "auto", True: "on", False: "off"}
_HINT = "`%gpu help` shows what can be said."


FOREVER = "366d"
"""The longest wait that there is."""


class Command(Struct, frozen=True, kw_only=True):
    """A line, understood."""

    verb: str
    request: Request = Request()
    device: str | None = None
    restart: bool = False
    off: bool = False
    save: bool = False
    text: str = ""


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise BadRequest(f"%gpu: {message}.", hint=_HINT)


def read(line: str) -> Command:
    """Read the line of a magic.

    Raises
    ------
    BadRequest, OutOfRange
        It cannot be read.
    """
    if line.split()[:1] == ["ask"]:  # whatever it says: it is a message
        return Command(verb="ask", text=line.strip()[len("ask") :].strip().strip("\"'"))
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise BadRequest(f"%gpu: {str(error).lower()}.", hint="Close the quotes.") from None
    verb, rest = (words[0], words[1:]) if words else ("status", [])
    if verb in ("-h", "--help", "help") or "--help" in rest or "-h" in rest:
        return Command(verb="help")
    if verb == "turn":
        raise BadRequest(
            "The turn is for a cell.", hint="Write `%%gpu turn` as the first line of the cell."
        )
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        meant = f"Did you mean `%gpu {near[0]}`? " if near else ""
        raise BadRequest(f"%gpu has no verb {verb!r}.", hint=f"{meant}It has {', '.join(VERBS)}.")
    if verb == "attach":
        return read_attach(rest)
    if verb in ("detach", "release"):
        return _read_detach(rest)
    if verb == "extend":
        if len(rest) != 1:
            raise BadRequest("%gpu extend takes a time.", hint="For example `%gpu extend 1h`.")
        parse_duration(rest[0])
        return Command(verb="extend", text=rest[0])
    if verb == "watch" and rest == ["off"]:
        return Command(verb="watch", off=True)
    if rest:
        raise BadRequest(f"%gpu {verb} takes nothing more, not {rest[0]!r}.", hint=_HINT)
    return Command(verb=verb)


def read_cell(line: str) -> int | None:
    """Read the line of a cell magic, ``turn``; return the seconds to wait at most.

    Raises
    ------
    BadRequest, OutOfRange
        It cannot be read.
    """
    words = line.split()
    if words[:1] != ["turn"]:
        verb = words[0] if words else ""
        raise BadRequest(
            f"%%gpu has no verb {verb!r}.",
            hint="A cell begins with `%%gpu turn`; the rest is a line: `%gpu attach 0.5`.",
        )
    parser = _Parser(prog="%%gpu turn", add_help=False, allow_abbrev=False)
    parser.add_argument("-t", "--timeout")
    found = parser.parse_args(words[1:])
    return None if found.timeout is None else parse_duration(found.timeout)


def read_attach(words: list[str]) -> Command:
    """Read what stands after ``attach``."""
    parser = _Parser(prog="%gpu attach", add_help=False, allow_abbrev=False)
    parser.add_argument("share", nargs="?")
    parser.add_argument("-m", "--memory")
    parser.add_argument("-d", "--device", action="append")
    parser.add_argument("-n", "--name")
    parser.add_argument("-p", "--processes", type=_whole)
    parser.add_argument("--mps", action=argparse.BooleanOptionalAction)
    parser.add_argument("--for", dest="duration")
    parser.add_argument("--wait")
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--save", action="store_true")
    found = parser.parse_args(with_wait(words))
    request = request_of(vars(found))
    return Command(verb="attach", request=request, restart=found.restart, save=found.save)


def request_of(found: dict[str, Any]) -> Request:
    """Make a request of a share, memory, devices and the rest as they were typed."""
    gpus: int | None = None
    fraction: float | None = None
    if found["share"] is not None:
        share = parse_share(found["share"])
        if share < WHOLE:
            fraction = share / WHOLE
        else:
            gpus = share // WHOLE
    devices = [
        part.strip() for name in found["device"] or () for part in name.split(",") if part.strip()
    ]
    return Request(
        gpus=gpus,
        fraction=fraction,
        memory=found["memory"],
        devices=tuple(devices) or None,
        name=found["name"],
        processes=found["processes"],
        mps=_MPS[found["mps"]],
        duration=_time(found.get("duration")),
        wait=_time(found.get("wait")),
    )


def with_wait(words: list[str]) -> list[str]:
    """Read ``--wait`` alone as for as long as it takes, and ``--wait 30m`` as ``--wait=30m``."""
    found: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--wait":
            timed = bool(left) and left[0][:1].isdigit() and left[0][-1:].isalpha()
            word = f"--wait={left.pop(0) if timed else FOREVER}"
        found.append(word)
    return found


def _time(text: str | None) -> str | None:
    if text is not None:
        parse_duration(text)
    return text


def _read_detach(words: list[str]) -> Command:
    parser = _Parser(prog="%gpu release", add_help=False, allow_abbrev=False)
    parser.add_argument("-d", "--device")
    parser.add_argument("--restart", action="store_true")
    found = parser.parse_args(words)
    return Command(verb="detach", device=found.device, restart=found.restart)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
