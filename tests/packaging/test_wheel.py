"""The archives hold everything once, and `pip install` of the wheel is all that a user does."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import expect, sync_playwright

from genv_jupyter import __version__
from tests.packaging.building import NAME, ROOT, Archives, environment, run

DATA = f"{NAME}.data/data"
EXTENSION = f"{DATA}/share/jupyter/labextensions/genv-jupyter"
PAGE = "genv_jupyter/hub/static"
TOKEN = "a-token-of-this-test"
CHROMIUM = "/usr/bin/chromium"
MOST_FETCHED = 200_000


def sources() -> set[str]:
    """Return every file of the package as it stands in the tree, without what was built."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "genv_jupyter").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    built = ("genv_jupyter/labextension/", f"{PAGE}/")
    return {name for name in found if not name.startswith(built)}


def test_wheel_holds_the_package_and_nothing_else(archives: Archives) -> None:
    with zipfile.ZipFile(archives.wheel) as wheel:
        names = wheel.namelist()
    assert [name for name, times in Counter(names).items() if times > 1] == []
    code = {name for name in names if not name.startswith(NAME)}
    page = {f"{PAGE}/{name}" for name in ("page.js", "page.css", "icon.svg")}
    assert code == sources() | page | {"genv_jupyter_stub.py"}


def test_wheel_brings_its_data_files_once(archives: Archives) -> None:
    with zipfile.ZipFile(archives.wheel) as wheel:
        names = wheel.namelist()
        enabled = json.loads(
            wheel.read(f"{DATA}/etc/jupyter/jupyter_server_config.d/genv_jupyter.json")
        )
        package = json.loads(wheel.read(f"{EXTENSION}/package.json"))
        entry_points = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert enabled == {"ServerApp": {"jpserver_extensions": {"genv_jupyter": True}}}
    assert f"{DATA}/etc/ipython/startup/50-genv-jupyter.py" in names
    assert f"{EXTENSION}/install.json" in names
    assert f"{NAME}.dist-info/licenses/LICENSE" in names
    assert "genv-provisioner" in entry_points
    assert "jupyter-gpu" in entry_points
    bundles = [name for name in names if re.search(r"/remoteEntry\.\w+\.js$", name)]
    assert bundles == [f"{EXTENSION}/{package['jupyterlab']['_build']['load']}"]


def test_what_browsers_fetch_of_us_is_small(archives: Archives) -> None:
    """Compressed as servers send it; what JupyterLab shares is not in it."""
    with zipfile.ZipFile(archives.wheel) as wheel:
        static = [name for name in wheel.namelist() if name.startswith(f"{EXTENSION}/static/")]
        fetched = {
            name: len(gzip.compress(wheel.read(name)))
            for name in static
            if name.endswith((".js", ".css"))
        }
    assert sum(fetched.values()) > 20_000, "the front end is in it"
    assert sum(fetched.values()) <= MOST_FETCHED, fetched
    assert not [name for name in static if name.endswith(".map")], "it was built for release"
    with zipfile.ZipFile(archives.wheel) as wheel:
        page = gzip.compress(wheel.read(f"{PAGE}/page.js"))
    assert 20_000 < len(page) <= MOST_FETCHED, "the page of a Hub"


def test_sdist_builds_without_node_and_carries_the_front_end(archives: Archives) -> None:
    with tarfile.open(archives.sdist) as sdist:
        names = {name.removeprefix(f"{NAME}/") for name in sdist.getnames()}
    assert "genv_jupyter/labextension/package.json" in names
    assert f"{PAGE}/page.js" in names
    assert "package-lock.json" in names
    assert not [name for name in names if name.startswith(("node_modules", ".venv", ".artifacts"))]


# --- installed ------------------------------------------------------------------------------------


class Installed(NamedTuple):
    python: Path
    lab: str

    def jupyter(self, *arguments: str, cwd: Path | None = None) -> str:
        return run(str(self.python.with_name("jupyter")), *arguments, cwd=cwd)


@pytest.fixture(scope="module", params=["4.4.*", "4.*"], ids=["oldest", "newest"])
def installed(
    request: pytest.FixtureRequest, archives: Archives, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """Install the wheel into an empty environment, with the oldest and the newest JupyterLab."""
    where = tmp_path_factory.mktemp("venv")
    python = environment(where, str(archives.wheel), f"jupyterlab=={request.param}")
    return Installed(python, run(str(where / "bin" / "jupyter-lab"), "--version").strip())


@pytest.fixture
def server(installed: Installed, clean: Path) -> Iterator[str]:
    """`jupyter lab` of that environment; yields its address."""
    log = clean / "lab.log"
    arguments = ["lab", "--no-browser", "--allow-root", f"--IdentityProvider.token={TOKEN}"]
    with (
        log.open("w") as output,
        subprocess.Popen(
            [installed.python.with_name("jupyter"), *arguments, "--LabApp.news_url=None"],
            cwd=clean,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield address(clean / "runtime", process, log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def address(runtime: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        for found in runtime.glob("jpserver-*.json"):
            url: str = json.loads(found.read_text())["url"]
            if status(f"{url}api/status") == 200:
                return url
        time.sleep(0.1)
    pytest.fail(f"jupyter lab did not come up:\n{log.read_text()}")


def fetch(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"token {TOKEN}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def status(url: str) -> int | None:
    try:
        fetch(url)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # not listening yet
        return None
    return 200


def test_extensions_are_enabled_by_installing(installed: Installed, clean: Path) -> None:
    labextensions = installed.jupyter("labextension", "list")
    assert re.search(rf"genv-jupyter v{re.escape(__version__)} .*enabled.*OK", labextensions)
    extensions = installed.jupyter("server", "extension", "list")
    assert re.search(r"genv_jupyter.*enabled", extensions)
    assert re.search(rf"genv_jupyter.* {re.escape(__version__)} .*OK", extensions)


def test_lab_serves_sidebar_and_rest(installed: Installed, server: str) -> None:
    page = fetch(f"{server}lab").decode()
    config = json.loads(re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.S)[1])
    ours = [e for e in config["federated_extensions"] if e["name"] == "genv-jupyter"]
    assert len(ours) == 1, f"JupyterLab {installed.lab} does not load the sidebar"
    bundle = fetch(f"{server}lab/extensions/genv-jupyter/{ours[0]['load']}")
    assert b"genv-jupyter" in bundle
    deadline = time.monotonic() + 60
    while status(f"{server}genv-jupyter/v1/health") == 503 and time.monotonic() < deadline:
        time.sleep(0.2)  # the broker is being started
    health = json.loads(fetch(f"{server}genv-jupyter/v1/health"))
    assert health["version"] == __version__
    assert health["simulated"] is True
    devices = json.loads(fetch(f"{server}genv-jupyter/v1/devices"))
    assert [device["memory_total"] for device in devices] == [24 * 2**30] * 2


def test_sidebar_is_drawn(installed: Installed, server: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{server}lab?token={TOKEN}")
        page.locator("[data-id=genv-jupyter-panel]").click(timeout=90_000)
        panel = page.locator("#genv-jupyter-panel")
        expect(panel.locator("[data-uuid]")).to_have_count(2, timeout=60_000)
        expect(panel).to_contain_text("SIMULATED")
        browser.close()


def test_quickstart_runs_in_the_installed_environment(installed: Installed, clean: Path) -> None:
    """Kernels there load `%gpu` by themselves: the wheel's IPython startup file is in force."""
    notebook = clean / "quickstart.ipynb"
    notebook.write_bytes((ROOT / "examples" / "quickstart.ipynb").read_bytes())
    installed.jupyter("execute", "--inplace", str(notebook), cwd=clean)
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell["outputs"] for cell in cells if cell["cell_type"] == "code")
