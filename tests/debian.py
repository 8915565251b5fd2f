"""Programs and libraries as Debian packs them, unpacked and not installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest


def unpacked(package: str, component: str = "non-free") -> Path:
    """Return the folder in which a package is unpacked; the test is skipped if it cannot be had.

    What was fetched once is kept in ``$XDG_CACHE_HOME/genv-jupyter-tests``.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "genv-jupyter-tests")
    folder = cache / package
    if folder.is_dir():
        return folder
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian" or not shutil.which("apt-get"):
        pytest.skip(f"NOT TESTED against the real {package}: it is fetched on Debian only")
    fetching = cache / f"{package}.{os.getpid()}"
    try:
        _fetch(package, component, release["VERSION_CODENAME"], fetching)
        (archive,) = fetching.glob("*.deb")
        _run(["dpkg-deb", "-x", str(archive), str(fetching / "root")])
        if not folder.is_dir():
            (fetching / "root").rename(folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"NOT TESTED against the real {package}: it cannot be fetched ({said.strip()})")
    finally:
        shutil.rmtree(fetching, ignore_errors=True)
    return folder


def _fetch(package: str, component: str, codename: str, where: Path) -> None:
    """Download a package with lists of our own: the system's sources stay as they are."""
    for name in ("lists/partial", "archives/partial"):
        (where / name).mkdir(parents=True)
    sources = where / "sources.list"
    sources.write_text(f"deb {_mirror(codename)} {codename} {component}\n")
    options = [
        f"Dir::Etc::sourcelist={sources}",
        "Dir::Etc::sourceparts=-",
        f"Dir::State::lists={where / 'lists'}",
        f"Dir::Cache={where}",
        "APT::Sandbox::User=",
        "Acquire::Retries=1",
    ]
    apt = ["apt-get", "-q", *(part for option in options for part in ("-o", option))]
    _run([*apt, "update"])
    _run([*apt, "download", package], where)


def _mirror(codename: str) -> str:
    """Return where this system gets its own packages from."""
    question = ["Created-By: Packages", f"Release: {codename}"]
    known = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", *question]).split()
    if not known:
        raise OSError("apt-get knows no source; `apt-get update` first")
    return known[0]


def _run(command: list[str], where: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=where, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout
