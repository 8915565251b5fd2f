"""What somebody asks of nvidia-smi, read from its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Kind = Literal["summary", "list", "query", "gpus", "apps", "help", "properties", "version"]

MOST_ARGUMENTS = 256
LONGEST = 32 * 1024
DEFAULT_LOOP = 5000
"""Milliseconds between two rounds of ``-l`` without a number."""

_VALUED = {
    **{"-i": "id", "--id": "id", "-f": "file", "--filename": "file"},
    **{"-d": "display", "--display": "display", "--format": "format"},
    **{"--query-gpu": "gpus", "--query-compute-apps": "apps"},
}
_LOOPS = {"-l": 1000, "--loop": 1000, "-lms": 1, "--loop-ms": 1}
_FLAGS = {
    **{"-L": "list", "--list-gpus": "list", "-q": "query", "--query": "query"},
    **{"-x": "xml", "--xml-format": "xml", "-h": "help", "--help": "help"},
    **{"--version": "version", "--help-query-gpu": "help_gpus"},
    "--help-query-compute-apps": "help_apps",
}
_RESTRICTABLE = frozenset(
    {"dmon", "pmon", "nvlink", "c2c", "clocks", "encodersessions", "fbcsessions", "vgpu", "mig"}
    | {"compute-policy", "boost-slider", "base-clocks", "gpm"}
)
_NEVER_RESTRICTED = frozenset(
    {"-B", "--list-excluded-gpus", "--dtd", "--help-query-supported-clocks"}
    | {"--help-query-accounted-apps", "--help-query-retired-pages", "--help-query-remapped-rows"}
)
RUN_HELP = "Please run 'nvidia-smi -h'"


class Command(Struct, kw_only=True):
    """A request that is answered here."""

    kind: Kind = "summary"
    ids: tuple[str, ...] | None = None
    file: str | None = None
    loop: int | None = None
    xml: bool = False
    displays: tuple[str, ...] | None = None
    properties: tuple[str, ...] = ()
    header: bool = True
    units: bool = True


class Wrong(Exception):
    """The arguments make no sense: what to write, and the code to leave with."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


class Foreign(Exception):
    """The arguments are for NVIDIA's own program: they name something that is not told here.

    ``ids`` are those given with ``-i``, taken out of ``arguments``; ``restrictable`` says whether
    the program takes ``-i`` there.
    """

    def __init__(self, what: str, arguments: Sequence[str]) -> None:
        super().__init__(what)
        first = arguments[0] if arguments else ""
        self.what = what
        self.ids, self.arguments = _without_ids(arguments)
        self.restrictable = first in _RESTRICTABLE or (
            first.startswith("-") and _NEVER_RESTRICTED.isdisjoint(arguments)
        )


def read(arguments: Sequence[str]) -> Command:
    """Read arguments.

    Raises
    ------
    Wrong
        NVIDIA's would refuse them too.
    Foreign
        NVIDIA's own program has to answer.
    """
    if len(arguments) > MOST_ARGUMENTS or sum(map(len, arguments)) > LONGEST:
        raise Wrong("ERROR: The arguments are too long.\n", 255)
    given: dict[str, str] = {}
    loop: int | None = None
    rest = list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option in _LOOPS:
            if not equals and rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            loop = _interval(value, _LOOPS[option])
        elif option in _VALUED:
            if not equals:
                if not rest:
                    raise Wrong(
                        f"ERROR: Option {option} is missing its value. {RUN_HELP} for help.\n\n",
                        255,
                    )
                value = rest.pop(0)
            given[_VALUED[option]] = value
        elif option in _FLAGS and not equals:
            given[_FLAGS[option]] = ""
        else:
            raise Foreign(option, arguments)
    return _command(given, loop)


def _command(given: dict[str, str], loop: int | None) -> Command:
    for word, kind in (("help", "help"), ("help_gpus", "properties"), ("version", "version")):
        if word in given:
            return Command(kind=kind, properties=("gpus",))  # type: ignore[arg-type]
    if "help_apps" in given:
        return Command(kind="properties", properties=("apps",))
    if "list" in given:
        return _list(given)
    command = Command(loop=loop, file=given.get("file"))
    if "id" in given:
        command.ids = tuple(part.strip() for part in given["id"].split(","))
    if "gpus" in given or "apps" in given:
        _selective(command, given)
    elif "format" in given:
        raise _unrecognized(f"--format={given['format']}", 255)
    elif "query" in given:
        _query(command, given)
    elif "xml" in given:
        raise Wrong(
            "Invalid combination of input arguments. Specify -q/--query and -x/--xml-format to run "
            f"an XML query.  {RUN_HELP} for help.\n\n",
            2,
        )
    elif "display" in given:
        raise _unrecognized("-d", 255)
    return command


def _list(given: dict[str, str]) -> Command:
    names = {"id": "-i", "query": "-q", "gpus": "--query-gpu", "apps": "--query-compute-apps"}
    for word, option in names.items():
        if word in given:
            shown = f"{option}={given[word]}" if option.startswith("--") else option
            raise Wrong(
                f"ERROR: Option {plain(shown)} is not valid for this command. {RUN_HELP} for "
                "help.\n\n",
                2,
            )
    return Command(kind="list")


def _selective(command: Command, given: dict[str, str]) -> None:
    if "query" in given:
        raise _unrecognized("-q", 2, " for help.\n\n")
    if "format" not in given:
        raise Wrong(f'"--format=" switch is missing. {RUN_HELP} for help.\n\n', 2)
    modifiers = given["format"].split(",")
    if any(one not in ("csv", "noheader", "nounits") for one in modifiers):
        raise Wrong("Format modifier is not recognized.\n", 2)
    if "csv" not in modifiers:
        raise Wrong("Format modifier --format=csv is mandatory.\n", 2)
    command.kind = "gpus" if "gpus" in given else "apps"
    command.properties = tuple(given[command.kind].split(","))
    command.header, command.units = "noheader" not in modifiers, "nounits" not in modifiers


def _query(command: Command, given: dict[str, str]) -> None:
    command.kind, command.xml = "query", "xml" in given
    if "display" not in given:
        return
    if command.xml:
        raise Wrong(
            "Invalid combination of input arguments: --display/-d flags can not be combined with "
            "-x/--xml-format flags.\n",
            2,
        )
    command.displays = tuple(part.strip().upper() for part in given["display"].split(","))


def _interval(value: str, unit: int) -> int:
    if value == "":
        return DEFAULT_LOOP
    if value.isascii() and value.isdigit() and int(value[:9]) > 0:
        return int(value[:9]) * unit
    raise Wrong(
        "Provided [-l(ms) | --loop(-ms)=] value is incorrect. Loop frequency must be greater than "
        "0.\n\n",
        2,
    )


def _unrecognized(option: str, code: int, end: str = ".\n\n") -> Wrong:
    return Wrong(f"ERROR: Option {plain(option)} is not recognized. {RUN_HELP}{end}", code)


def plain(text: str) -> str:
    """Return what somebody gave as it may be written: short, and without control characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:200])
    return shown + ("…" if len(text) > 200 else "")


def _without_ids(arguments: Sequence[str]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    ids: list[str] = []
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option not in ("-i", "--id"):
            kept.append(word)
            continue
        if not equals:
            value = rest.pop(0) if rest else ""
        ids += [part.strip() for part in value.split(",")]
    return (tuple(ids) if ids else None), tuple(kept)
