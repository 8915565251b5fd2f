"""The archives are built once for all tests of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integration.servers import (  # noqa: F401 (fixtures are found by their names here)
    add_kernelspec,
    jp_server_config,
    provisioner_factory,
    server,
)
from tests.packaging.building import NAME, ROOT, Archives, run


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Build the sdist from the tree, and the wheel from the sdist, as a release does."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    return Archives(out / f"{NAME}.tar.gz", out / f"{NAME}-py3-none-any.whl")


@pytest.fixture
def clean(broker_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own, and no trace of the environment that the tests run in."""
    for name in list(os.environ):
        if name.startswith(("JUPYTER_", "IPYTHON", "PYTHON", "VIRTUAL_ENV")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
    return home
