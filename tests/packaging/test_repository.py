"""What must be the same in several files is, and lock files name no address."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from genv_jupyter import __version__

ROOT = Path(__file__).parents[2]


def test_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    package = json.loads((ROOT / "package.json").read_text())
    lock = json.loads((ROOT / "package-lock.json").read_text())
    versions = {__version__, project["version"], package["version"], lock["version"]}
    assert versions == {__version__}


def test_lock_file_records_no_download_address() -> None:
    text = (ROOT / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    assert packages
    assert [name for name, entry in packages.items() if "resolved" in entry] == []
    assert ".tgz" not in text


@pytest.mark.parametrize(
    "script", [".ci/run", "tests/setup.sh", "examples/lab.sh", "binder/postBuild", "binder/start"]
)
def test_script_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_binder_simulates_devices() -> None:
    done = subprocess.run(
        [ROOT / "binder" / "start", "sh", "-c", "echo $GENV_JUPYTER_SIMULATE"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2x24GiB\n"


@pytest.mark.parametrize("installed", [["gcc"], []], ids=["all-there", "nothing-there"])
def test_setup_installs_only_what_is_missing(installed: list[str], tmp_path: Path) -> None:
    """With stand-ins for the tools, the script must ask apt-get for exactly the missing ones."""
    tools = tmp_path / "bin"
    tools.mkdir()
    said = tmp_path / "apt"
    for name, body in {
        "apt-get": f'echo "$@" >>{said}',
        "sudo": 'exec "$@"',
        "gcc": "exit 0" if "gcc" in installed else "exit 1",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(["bash", ROOT / "tests" / "setup.sh", "test"], env=environ, check=True)
    asked = said.read_text() if said.exists() else ""
    assert ("gcc libc6-dev" in asked) is ("gcc" not in installed)
    assert ("chromium" in asked) is not Path("/usr/bin/chromium").exists()


@pytest.mark.parametrize("asked", [None, "1x80GiB"])
def test_lab_simulates_only_where_it_must_and_says_so(asked: str | None, tmp_path: Path) -> None:
    """With a stand-in for `jupyter`, which tells what it was started with."""
    jupyter = tmp_path / "jupyter"
    jupyter.write_text('#!/bin/sh\necho "devices=$GENV_JUPYTER_SIMULATE" "$@"\n')
    jupyter.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SHELL": "/bin/zsh"}
    if asked:
        environ["GENV_JUPYTER_SIMULATE"] = asked
    said = subprocess.run(
        ["bash", ROOT / "examples" / "lab.sh", "--port=1"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    driver = any(map(os.path.exists, ("/proc/driver/nvidia/version", "/sys/module/nvidia")))
    expected = asked or ("" if driver else "2x24GiB")
    assert f"devices={expected} lab" in said
    assert ("SIMULATED" in said) is bool(expected)
    assert "/lab/tree/quickstart.ipynb" in said and "--port=1" in said
    assert "shell_command=/bin/zsh " in said  # no login shell: its profile may reset PATH
