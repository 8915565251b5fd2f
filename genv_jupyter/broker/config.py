"""What whoever runs a broker may decide: read from Jupyter's configuration files.

The user broker reads ``jupyter_genv_config.{py,json}`` wherever Jupyter looks for configuration
(``jupyter --paths``); the host daemon reads files of that name in ``/etc/genv-jupyter`` alone.

Each part declares its own ``Configurable`` beside the code that obeys it; it is listed in
``CLASSES`` here, and its part asks for it with ``config.of(Part)``. All mistakes are found at
once. A user broker goes on with the defaults for what it could not read, and says so: no file of
ours may keep a kernel from starting.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, cast

from jupyter_core.paths import jupyter_config_path
from traitlets import Bool, Enum, TraitError
from traitlets.config import Config, Configurable
from traitlets.config.loader import JSONFileConfigLoader, PyFileConfigLoader

from genv_jupyter.broker.discretion import Discretion
from genv_jupyter.broker.hub_identity import HubAccess
from genv_jupyter.broker.identity import Access
from genv_jupyter.broker.leases import Leases
from genv_jupyter.broker.leftovers import LeftoverSettings
from genv_jupyter.broker.line import Queueing
from genv_jupyter.broker.mps_settings import MpsDaemons
from genv_jupyter.broker.pace import Sampling
from genv_jupyter.broker.quota_settings import QuotaSettings
from genv_jupyter.broker.rules.settings import Rules
from genv_jupyter.broker.traits import Seconds, Share, Size
from genv_jupyter.errors import Unavailable
from genv_jupyter.policy import Policy
from genv_jupyter.units import WHOLE

C = TypeVar("C", bound=Configurable)
NAME = "jupyter_genv_config"
HOST_DIRECTORY = Path("/etc/genv-jupyter")
_DEFAULTS = Policy()


class PolicySettings(Configurable):
    """The numbers that decide who gets what."""

    memory_headroom = Size(
        _DEFAULTS.memory_headroom,
        help="Memory of every device that is never granted, besides the driver's own reserve: "
        "bytes, 500M or 1GiB. 0: none.",
    )
    memory_overcommit = Share(
        _DEFAULTS.memory_overcommit / WHOLE,
        help="How often memory may be promised: 1.0 (or 100%) never twice; 1.25 a quarter more "
        "than there is.",
    )
    compute_overcommit = Share(
        _DEFAULTS.compute_overcommit / WHOLE,
        help="How much compute may be promised on one device: 1.0 (or 100%) is all of it once.",
    )
    desktop_memory = Size(
        _DEFAULTS.desktop_memory,
        help="What graphics processes may hold on a device that still counts as whole: bytes, "
        "500M or 1GiB; or `desktop_share`, whichever is more.",
    )
    desktop_share = Share(
        _DEFAULTS.desktop_share / WHOLE,
        help="What graphics processes may hold of a device that still counts as whole, as a part "
        "of its memory: 0.05 or 5%; or `desktop_memory`, whichever is more.",
    )
    start_deadline = Seconds(
        _DEFAULTS.start_deadline,
        help="How long a start or a restart of a kernel may take before its grants are given "
        "away: seconds, or 2m.",
    )
    mps = Enum(
        ["auto", "always", "never"],
        _DEFAULTS.mps,
        help="Whether shared grants run under NVIDIA's MPS: where the device can ('auto'), or "
        "they are refused ('always'); 'never'.",
    ).tag(config=True)
    mps_memory_only = Bool(
        _DEFAULTS.mps_memory_only,
        help="Whether `mps = 'auto'` is for requests of memory alone too, without a share of "
        "compute.",
    ).tag(config=True)
    mps_minimum = Size(
        _DEFAULTS.mps_minimum,
        help="The smallest cap under MPS, where a process's CUDA context (300 to 500 MiB) counts "
        "as a part of it: bytes, 512MiB.",
    )
    share_between_users = Enum(
        ["last", "never", "always"],
        _DEFAULTS.share_between_users,
        help="Whether users share a device with each other. Their work takes turns there, under "
        "MPS too, and nobody has a ceiling of compute. 'last': only where nothing else is free; "
        "'never'; 'always': as with devices of their own.",
    ).tag(config=True)
    confirm_seconds = Seconds(
        _DEFAULTS.confirm_seconds,
        help="For how long no process of an environment may be on a device before a release that "
        "the process never confirmed is believed: seconds.",
    )

    def policy(self) -> Policy:
        """Return what was decided, as the broker obeys it."""
        values = {name: getattr(self, name) for name in Policy.__struct_fields__}
        for name, value in values.items():
            if isinstance(value, Decimal):  # no float ever decides, and no ratio either
                values[name] = int(value * WHOLE)
        return Policy(**values)


CLASSES: tuple[type[Configurable], ...] = (
    PolicySettings,
    Access,
    HubAccess,
    Discretion,
    Leases,
    MpsDaemons,
    LeftoverSettings,
    Queueing,
    QuotaSettings,
    Rules,
    Sampling,
)
"""All that can be configured, in the order of the documentation."""


class BrokerConfig:
    """The configuration of one broker.

    Attributes
    ----------
    config
        What was read and stands: every mistake has been left out of it.
    files
        The files that were read, the weakest first.
    problems
        A sentence for each mistake.
    """

    def __init__(
        self, config: Config | None = None, files: Sequence[Path] = (), problems: Iterable[str] = ()
    ) -> None:
        self.config = config or Config()
        self.files = tuple(files)
        self._parts: dict[type[Configurable], Configurable] = {}
        self.problems = [*problems, *_weed(self.config)]

    @classmethod
    def user(cls) -> BrokerConfig:
        """Read the user's configuration, whatever is wrong with it."""
        found = [Path(directory) for directory in reversed(jupyter_config_path())]
        made = cls._read(path for directory in found for path in _files(directory))
        if (said := made.of(MpsDaemons).against_exclusive_mode(host=False)) is not None:
            made.problems.append(said)
            made.of(MpsDaemons).exclusive_mode = False
        return made

    @classmethod
    def host(cls, path: Path | None = None, *, helper: bool = False) -> BrokerConfig:
        """Read a host daemon's configuration: a file, or those of a directory.

        ``helper`` says that the daemon has a root helper.

        Raises
        ------
        Unavailable
            There are mistakes in it, or others may write to it; all of them are told.
        """
        where = path or HOST_DIRECTORY
        if path is not None and not path.exists():
            raise Unavailable(f"There is no configuration at {path}.", hint="Check `--config`.")
        files = list(_files(where)) if where.is_dir() or path is None else [where]
        unsafe = [said for file in files if (said := _unsafe(file))]
        made = cls(problems=unsafe) if unsafe else cls._read(files)
        if (
            said := made.of(MpsDaemons).against_exclusive_mode(host=True, helper=helper)
        ) is not None:
            made.problems.append(said)
        if made.problems:
            raise Unavailable(
                "The configuration of the GPU broker cannot be used:\n- "
                + "\n- ".join(made.problems),
                hint="`jupyter gpu broker --generate-config` shows everything that can be set.",
            )
        return made

    @classmethod
    def _read(cls, files: Iterable[Path]) -> BrokerConfig:
        config, read, problems = Config(), [], []
        for file in files:
            try:
                config.merge(_load(file))
                read.append(file)
            except (Exception, SystemExit) as error:  # it is a program: it may raise whatever
                problems.append(f"{file} cannot be read: {type(error).__name__}: {error}")
        return cls(config, read, problems)

    def of(self, kind: type[C]) -> C:
        """Return a part's settings."""
        if kind not in self._parts:
            self._parts[kind] = kind(config=self.config)
        return cast("C", self._parts[kind])

    def policy(self) -> Policy:
        """Return the numbers that decide who gets what."""
        return self.of(PolicySettings).policy()


def generate(classes: Iterable[type[Configurable]] = CLASSES) -> str:
    """Return a configuration file in which everything is named, explained and commented out."""
    lines = [
        "# Configuration of the GPU broker (genv-jupyter). What is commented out is the default.",
        "c = get_config()  # noqa",
    ]
    for kind in classes:
        lines += ["", kind.class_config_section(list(classes))]
    return "\n".join(lines).rstrip() + "\n"


def _files(directory: Path) -> Iterator[Path]:
    """Return the files in a directory; what is set as JSON, by programs, comes last."""
    for ending in (".py", ".json"):
        path = directory / f"{NAME}{ending}"
        if path.exists():
            yield path


def _load(path: Path) -> Config:
    loader = JSONFileConfigLoader if path.suffix == ".json" else PyFileConfigLoader
    return loader(path.name, path=str(path.parent)).load_config()


def _unsafe(path: Path) -> str | None:
    """Say why a file is not to be run by a broker that serves everybody."""
    for each in (path, path.parent):
        found = each.stat()
        if found.st_uid not in (0, os.getuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return (
                f"{each} may be written by others (uid {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):o}): it is not read."
            )
    return None


def _weed(config: Config) -> Iterator[str]:
    """Take every mistake out of a configuration, and tell of each."""
    known = {kind.__name__: kind for kind in CLASSES}
    for section in [name for name in config if isinstance(name, str)]:
        if section not in known:
            if section in ("Application", "JupyterApp", "Configurable"):
                continue  # traitlets' own, which its files may always name
            yield f"There is nothing called {section} to configure{_like(section, known)}."
            del config[section]
            continue
        yield from _weed_section(config, section, known[section])


def _weed_section(config: Config, section: str, kind: type[Configurable]) -> Iterator[str]:
    values, traits = config[section], kind.class_traits(config=True)
    for name in list(values):
        if name not in traits:
            yield f"{section} has no setting {name}{_like(name, traits)}."
        else:
            said = _refused(kind, {name: values[name]})
            if said is None:
                continue
            yield f"{section}.{said}" if said.startswith(name) else f"{section}.{name}: {said}"
        del values[name]
    said = _refused(kind, values)
    if said is not None:  # each for itself is right, and together they are not
        yield f"{section}: {said}"
        del config[section]


def _refused(kind: type[Configurable], values: dict[str, Any]) -> str | None:
    try:
        kind(config=Config({kind.__name__: values}))
    except TraitError as error:
        return str(error).rstrip(".")
    return None


def _like(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def check(path: Path | None) -> int:
    """Say whether a host daemon would start with its configuration; return an exit status."""
    try:
        found = BrokerConfig.host(path)
    except Unavailable as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print("Read: " + (", ".join(map(str, found.files)) or "nothing; everything is the default"))
    return 0
