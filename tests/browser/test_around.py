"""What is around the panel: popover, menus, launcher, running kernels, notifications, settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.browser.jupyter import TOKEN, Jupyter
from tests.browser.pages import PATIENCE, Notebook, Notebook7

SIMULATE = {"GENV_JUPYTER_SIMULATE": "2x24GiB"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    with Jupyter(
        tmp_path_factory.mktemp("around"),
        SIMULATE,
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ) as server:
        for name in ("llm", "debug"):
            server.notebook(f"{name}.ipynb", "1 + 1")
        yield server


@pytest.fixture
def jupyter(server: Jupyter) -> Iterator[Jupyter]:
    yield server
    server.close_kernels()


def choose(jupyter: Jupyter, **settings: object) -> None:
    """Set what a user may choose."""
    jupyter.call("PUT", "lab/api/settings/genv-jupyter:gpu", {"raw": json.dumps(settings)})


def test_the_button_has_a_popover_with_bar_and_actions(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.button.click()
    popover = page.locator("#genv-jupyter-popover")
    popover.get_by_role("button", name="Attach ½ GPU").click()
    notebook.expect_summary("GPU: ½")
    expect(popover).to_contain_text("0 of 12 GiB")
    expect(popover.get_by_role("region", name="Devices")).to_have_count(0)
    notebook.shoot("popover", themes=("light", "dark"))
    popover.get_by_role("button", name="All GPUs…").click()
    expect(popover).to_have_count(0)
    expect(notebook.device(0)).to_contain_text("llm.ipynb")
    notebook.button.click()
    popover.get_by_role("button", name="Release", exact=True).click()
    notebook.expect_summary("GPU: none")
    page.keyboard.press("Escape")
    expect(popover).to_have_count(0)
    expect(notebook.button).to_be_focused()


def test_menu_and_palette(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.locator(".lm-Menu-item", has_text="GPU").last.hover()
    menu = page.locator("#jp-mainmenu-kernel-genv-jupyter")
    expect(menu).to_contain_text("My GPU-Hours")
    notebook.shoot("menu")
    menu.get_by_text("Attach 0.5 GPU to Notebook").click()
    notebook.expect_summary("GPU: ½")
    page.keyboard.press("Control+Shift+C")
    page.locator(".lm-CommandPalette-input:visible").fill("Release GPU")
    page.keyboard.press("Enter")
    notebook.expect_summary("GPU: none")


def test_launcher_opens_a_notebook_that_has_half_a_gpu(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.command("launcher:create")
    card = page.locator(".jp-LauncherCard:visible", has_text="Notebook with 0.5 GPU")
    expect(card).to_be_visible()
    notebook.shoot("launcher", themes=("light", "dark"))
    card.click()
    notebook.expect_summary("GPU: ½")
    assert jupyter.environment("Untitled.ipynb")["request"]["fraction"] == 0.5


def test_what_holds_gpus_is_among_what_runs(jupyter: Jupyter, page: Page) -> None:
    kernel = jupyter.open_kernel("debug.ipynb")
    jupyter.gpu("PUT", f"environments/{kernel}", {"fraction": 0.5})
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    page.get_by_role("tab", name="Running Terminals and Kernels").click()
    row = page.locator(".jp-RunningSessions-item", has_text="debug.ipynb · GPU 0")
    expect(row).to_be_visible()
    notebook.shoot("running")
    row.hover()
    row.locator(".jp-RunningSessions-itemShutdown").click()
    expect(row).to_have_count(0)
    jupyter.until(lambda: jupyter.gpu("GET", f"environments/{kernel}")["grants"] == [])


@pytest.mark.parametrize("kind", [Notebook, Notebook7])
def test_a_lease_that_ends_is_told_and_extended(
    kind: type[Notebook], jupyter: Jupyter, page: Page
) -> None:
    notebook = kind(page, jupyter, "llm.ipynb")
    notebook.open()
    kernel = jupyter.environment("llm.ipynb")["id"]
    jupyter.gpu("PUT", f"environments/{kernel}", {"fraction": 0.5, "duration": "60s"})
    before = jupyter.environment("llm.ipynb")["expires"]
    said = page.locator(".Toastify__toast").filter(
        has_text=re.compile(r"llm\.ipynb, until .*\d\d:\d\d: The lease of what is held here ends")
    )
    expect(said).to_be_visible(timeout=60_000)
    expect(said.get_by_role("button", name="Release now")).to_be_visible()
    notebook.shoot(f"toast-lease-{kind.__name__.lower()}", toasts=True)
    said.get_by_role("button", name="Extend by 1 h").click()
    jupyter.until(lambda: jupyter.environment("llm.ipynb")["expires"] > before)
    expect(said).to_have_count(0, timeout=PATIENCE)


def test_settings(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    try:
        choose(
            jupyter,
            position="left",
            units="GB",
            colours="safe",
            sections={"environments": False},
            launcher="4G",
        )
        notebook.open()
        notebook.show()
        expect(page.locator("#jp-left-stack #genv-jupyter-panel")).to_be_visible()
        expect(notebook.device(0)).to_contain_text("25.8 GB free")
        expect(notebook.panel.get_by_role("region", name="Environments")).to_have_count(0)
        notebook.attach("½ GPU")
        notebook.expect_summary("GPU: ½")
        notebook.shoot("settings-chosen", themes=("light", "dark"))
        mine = notebook.device(0).locator(".jp-mod-mine").first
        colour = mine.evaluate("node => getComputedStyle(node).backgroundColor")
        assert colour == "rgb(0, 114, 178)"
        notebook.command("settingeditor:open", query="GPU panel")
        expect(page.get_by_text("Notebooks remember their GPU").first).to_be_visible()
        notebook.shoot("settings")
    finally:
        choose(jupyter)


def test_in_another_language(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    language = "lab/api/settings/@jupyterlab/translation-extension:plugin"
    try:
        jupyter.call("PUT", language, {"raw": json.dumps({"locale": "de_DE"})})
        notebook.open()
        notebook.expect_summary("GPU: keine")
        notebook.command("genv-jupyter:show")
        expect(notebook.panel).to_contain_text("Keine GPU zugeteilt.")
        notebook.panel.get_by_role("button", name="½ GPU zuteilen").click()
        expect(notebook.panel).to_contain_text("12 GiB frei")
        notebook.shoot("german")
        notebook.command("settingeditor:open", query="GPU-Leiste")
        editor = page.locator(".jp-SettingsPanel")
        expect(editor.get_by_text("Einheit des Speichers").first).to_be_visible()
        expect(editor).to_contain_text("Notebooks merken sich ihre GPU")
        expect(editor).not_to_contain_text("Units of memory")
        notebook.shoot("german-settings")
    finally:
        jupyter.call("PUT", language, {"raw": "{}"})


def test_a_notebook_remembers_what_it_was_given(jupyter: Jupyter, page: Page) -> None:
    jupyter.notebook("kept.ipynb", "1 + 1")
    path = jupyter.notebooks / "kept.ipynb"
    try:
        choose(jupyter, remember=True)
        notebook = Notebook(page, jupyter, "kept.ipynb")
        notebook.open()
        notebook.show()
        notebook.attach("½ GPU")
        notebook.expect_summary("GPU: ½")
        notebook.command("docmanager:save")
        jupyter.until(lambda: "genv_jupyter" in path.read_text())
        kept = json.loads(path.read_text())["metadata"]["genv_jupyter"]
        assert kept == {"request": {"fraction": 0.5}}
        jupyter.close_kernels()
        page.goto(jupyter.page("kept.ipynb"))
        notebook.expect_summary("GPU: ½")
        notebook.show()
        notebook.release()
        notebook.expect_summary("GPU: none")
        notebook.command("docmanager:save")
        jupyter.until(lambda: "genv_jupyter" not in path.read_text())
    finally:
        choose(jupyter)


def test_where_websockets_are_blocked_it_polls(jupyter: Jupyter, page: Page) -> None:
    def block(route: WebSocketRoute) -> None:
        route.close()

    page.route_web_socket("**/genv-jupyter/v1/events*", block)
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.show()
    kernel = jupyter.environment("llm.ipynb")["id"]
    jupyter.gpu("PUT", f"environments/{kernel}", {"fraction": 0.5})
    notebook.expect_summary("GPU: ½")
    expect(notebook.notebook).to_contain_text("0 of 12 GiB")
    expect(notebook.panel.locator("[data-stale=false]")).to_be_visible()


def test_kernels_of_a_gateway_run_elsewhere(page: Page, tmp_path: Path) -> None:
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    off = "--GenvJupyterApp.enabled=False"
    gateway = Jupyter(tmp_path / "there", {}, off)
    asked = (f"--GatewayClient.url={gateway.url}", f"--GatewayClient.auth_token={TOKEN}")
    with gateway, Jupyter(tmp_path / "here", SIMULATE, *asked) as jupyter:
        notebook = Notebook(page, jupyter, jupyter.notebook("llm.ipynb", "1 + 1"))
        notebook.open()
        notebook.expect_summary("Kernels run elsewhere")
        notebook.show()
        expect(notebook.notebook).to_contain_text("the GPUs of this host are not theirs")
        notebook.shoot("gateway")
        page.goto("about:blank")
        gateway.close_kernels()
        # Its client of the gateway waits for ever for a kernel's connection that was cut.
        assert jupyter.process is not None
        jupyter.process.kill()
