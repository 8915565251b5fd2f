"""What the panel says where there is nothing to share, or no way to the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.jupyter import TOKEN, Jupyter
from tests.browser.pages import PATIENCE, Notebook
from tests.fakedriver.fixtures import MakeDriver, fake_driver

__all__ = ["fake_driver"]

DRIVER_NOT_LOADED = 9
SIMULATE = {"GENV_JUPYTER_SIMULATE": "2x24GiB"}


@contextmanager
def lab(
    page: Page, directory: Path, environ: Mapping[str, str], *arguments: str, enabled: bool = True
) -> Iterator[Notebook]:
    """Open JupyterLab on a notebook, and our panel where the extension is enabled."""
    with Jupyter(directory, environ, *arguments) as jupyter:
        notebook = Notebook(page, jupyter, jupyter.notebook("llm.ipynb", "1 + 1"))
        page.goto(jupyter.page("llm.ipynb"))
        page.locator(".jp-NotebookPanel-toolbar").wait_for(timeout=2 * PATIENCE)
        page.locator("#jp-main-statusbar").wait_for()
        if enabled:
            notebook.command("genv-jupyter:show")
            expect(notebook.panel).to_be_visible()
        yield notebook
        jupyter.close_kernels()


def test_extension_off(page: Page, tmp_path: Path) -> None:
    off = "--GenvJupyterApp.enabled=False"
    answers: list[int] = []
    page.on(
        "response", lambda it: answers.append(it.status) if "/genv-jupyter/v1" in it.url else None
    )
    with lab(page, tmp_path, SIMULATE, off, enabled=False) as notebook:
        # Of a package that has nothing to say on this server nothing is seen, and nothing asked.
        expect(notebook.panel).to_have_count(0)
        expect(notebook.button).to_have_count(0)
        expect(page.locator(".jp-Genv-statusItem")).to_have_count(0)
        notebook.command("genv-jupyter:show")
        offered = page.evaluate(
            """() => {
              const {commands} = window.jupyterapp;
              const ours = commands.listCommands().filter(id => id.startsWith('genv-jupyter:'));
              return [ours.length, ours.filter(id => commands.isVisible(id))];
            }"""
        )
        assert offered[0] > 5
        assert offered[1] == []
        expect(notebook.panel).to_have_count(0)
        assert answers == [404], "it is asked for once"
        notebook.shoot("state-absent", themes=("light", "dark"))


def test_no_driver(page: Page, tmp_path: Path, fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    driver.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    with lab(page, tmp_path, driver.environ) as notebook:
        jupyter = notebook.jupyter
        jupyter.until(lambda: jupyter.gpu("GET", "health")["driver"] is not None)
        said = jupyter.gpu("GET", "health")["driver"].replace("`", "")
        expect(notebook.panel).to_contain_text(said)
        notebook.shoot("state-no-driver", themes=("light", "dark"))


def test_device_lost_and_memory_of_outsiders(
    page: Page, tmp_path: Path, fake_driver: MakeDriver
) -> None:
    driver = fake_driver()
    first, second = driver.uuids
    driver.set_external(second, 6 * 2**30)
    with lab(page, tmp_path, driver.environ) as notebook:
        notebook.attach("1 GPU")
        notebook.expect_summary("GPU: 1")
        expect(notebook.device(1)).to_contain_text("Used by no visible process")
        driver.lose(first)
        expect(notebook.device(0)).to_contain_text("device lost", timeout=PATIENCE)
        expect(notebook.device(0)).to_contain_text("nothing free")
        notebook.shoot("state-lost", themes=("light", "dark"))


def test_broker_down(page: Page, tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where a directory should be")
    environ = {**SIMULATE, "GENV_JUPYTER_HOME": str(occupied)}
    with lab(page, tmp_path, environ) as notebook:
        expect(notebook.panel.get_by_role("button", name="Try again")).to_be_visible(
            timeout=PATIENCE
        )
        expect(notebook.panel).to_contain_text(str(occupied))
        notebook.shoot("state-broker-down", themes=("light", "dark"))
        occupied.unlink()
        notebook.panel.get_by_role("button", name="Try again").click()
        expect(notebook.device(0)).to_be_visible(timeout=PATIENCE)


def test_server_that_goes_and_comes_back(page: Page, tmp_path: Path) -> None:
    with lab(page, tmp_path, SIMULATE) as notebook:
        notebook.attach("½ GPU")
        notebook.expect_summary("GPU: ½")
        notebook.jupyter.stop()
        expect(notebook.panel).to_contain_text("The Jupyter server does not answer")
        expect(notebook.device(0)).to_be_visible()  # what was known stays, and says so
        expect(notebook.panel).to_contain_text("may be out of date")
        notebook.shoot("state-disconnected")
        notebook.jupyter.start()
        expect(notebook.device(1)).to_contain_text("24 GiB free", timeout=PATIENCE)
        expect(notebook.panel.locator("[data-stale=false]")).to_be_visible(timeout=PATIENCE)
        expect(notebook.panel).not_to_contain_text("does not answer")


def test_kernel_that_was_not_started_by_us(page: Page, tmp_path: Path) -> None:
    local = "--KernelProvisionerFactory.default_provisioner_name=local-provisioner"
    with lab(page, tmp_path, SIMULATE, local) as notebook:
        expect(notebook.notebook).to_contain_text("was not started through genv-jupyter")
        expect(notebook.device(0)).to_be_visible()
        expect(notebook.button).to_have_count(0)


def test_nobody_is_let_in_without_a_token(page: Page, tmp_path: Path) -> None:
    with Jupyter(tmp_path, SIMULATE) as jupyter:
        answer = page.request.get(f"{jupyter.url}/genv-jupyter/v1/devices")
        assert answer.status == 401
        assert TOKEN not in answer.text()
