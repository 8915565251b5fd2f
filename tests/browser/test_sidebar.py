"""The sidebar over simulated devices: every action, every state, in JupyterLab and Notebook 7."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, WebSocket, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import Notebook, Notebook7

SIMULATE = {"GENV_JUPYTER_SIMULATE": "2x24GiB"}
CELLS = ["%gpu attach --memory 4G", "%gpu release", "print('busy')"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    with Jupyter(
        tmp_path_factory.mktemp("sidebar"),
        SIMULATE,
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ) as server:
        for name in ("llm", "debug", "viz"):
            server.notebook(f"{name}.ipynb", *CELLS)
        yield server


@pytest.fixture
def jupyter(server: Jupyter) -> Iterator[Jupyter]:
    yield server
    server.close_kernels()


@pytest.fixture(params=[Notebook, Notebook7], ids=["lab", "notebook7"])
def notebook(request: pytest.FixtureRequest, jupyter: Jupyter, page: Page) -> Notebook:
    kind: Callable[[Page, Jupyter, str], Notebook] = request.param
    return kind(page, jupyter, "llm.ipynb")


def others(jupyter: Jupyter) -> None:
    """Two other notebooks hold a part of each device."""
    for name, asked in (("debug", {"memory": "4G"}), ("viz", {"fraction": 0.5, "devices": ["1"]})):
        kernel = jupyter.open_kernel(f"{name}.ipynb")
        jupyter.gpu("PUT", f"environments/{kernel}", asked)


def test_attach_and_release(notebook: Notebook) -> None:
    notebook.open()
    notebook.expect_summary("GPU: none")
    notebook.show()
    expect(notebook.panel.get_by_text("SIMULATED", exact=True)).to_be_visible()
    expect(notebook.device(0)).to_contain_text("24 GiB free")
    notebook.attach("½ GPU")
    notebook.expect_summary("GPU: ½")
    expect(notebook.device(0)).to_contain_text("12 GiB free")
    expect(notebook.device(0)).to_contain_text(re.compile(r"llm\.ipynb.*50 %, 12 GiB.*since"))
    [grant] = notebook.jupyter.environment("llm.ipynb")["grants"]
    assert (grant["memory"], grant["compute"]) == (12 * 2**30, 5000)
    notebook.attach_form(memory="4G", device="GPU 1")
    notebook.expect_summary("GPU: 3.7 GiB")
    expect(notebook.device(1)).to_contain_text("llm.ipynb")
    expect(notebook.device(0)).not_to_contain_text("llm.ipynb")
    notebook.release()
    notebook.expect_summary("GPU: none")
    assert notebook.jupyter.environment("llm.ipynb")["grants"] == []


def test_refusal_names_the_holders_in_the_panel(notebook: Notebook) -> None:
    others(notebook.jupyter)
    notebook.open()
    notebook.show()
    notebook.attach("½ GPU")
    notebook.expect_summary("GPU: ½")
    notebook.attach("1 GPU")
    expect(notebook.refusal).to_contain_text("debug.ipynb")
    expect(notebook.refusal).to_contain_text("viz.ipynb")
    expect(notebook.page.locator(".jp-Dialog")).to_have_count(0)
    notebook.expect_summary("GPU: ½")  # it keeps what it had
    notebook.shoot(f"refusal-{type(notebook).__name__.lower()}", themes=("light", "dark"))
    notebook.refusal.get_by_role("button", name="Dismiss").click()
    expect(notebook.refusal).to_be_empty()


def test_a_request_that_nobody_could_grant_is_explained(notebook: Notebook) -> None:
    notebook.open()
    notebook.show()
    attach = notebook.fill_form(gpus="1.5")
    expect(notebook.notebook).to_contain_text("a fraction lives on one device")
    expect(attach).to_be_disabled()
    notebook.fill_form(memory="4X")
    expect(notebook.notebook).to_contain_text("not an amount of memory")
    expect(attach).to_be_disabled()
    notebook.expect_summary("GPU: none")


def test_follows_the_magic_over_one_socket(jupyter: Jupyter, page: Page) -> None:
    sockets: list[WebSocket] = []
    calls: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket) if is_ours(socket.url) else None)
    page.on("request", lambda call: calls.append(call.url) if is_ours(call.url) else None)
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.show()
    asked = list(calls)
    notebook.run(0)
    notebook.expect_summary("GPU: 3.7 GiB")
    expect(notebook.device(0)).to_contain_text("llm.ipynb")
    notebook.run(1)
    notebook.expect_summary("GPU: none")
    expect(notebook.device(0)).not_to_contain_text("llm.ipynb")
    assert len(sockets) == 1
    assert calls == asked, "nothing is polled while a socket is open"


def is_ours(url: str) -> bool:
    return "/genv-jupyter/" in url


def test_another_notebook_in_front_shows_its_own(jupyter: Jupyter, page: Page) -> None:
    others(jupyter)
    notebook = Notebook(page, jupyter, "viz.ipynb")
    notebook.open()
    notebook.show()
    notebook.expect_summary("GPU: ½")
    expect(notebook.notebook).to_contain_text("GPU 1")
    status = page.locator(".jp-Genv-statusItem")
    expect(status).to_have_text("GPU 1 · 0/12 GiB")
    notebook.command("docmanager:open", path="debug.ipynb", factory="Notebook")
    notebook.expect_summary("GPU: 3.7 GiB")
    expect(status).to_have_text("GPU 0 · 0/3.7 GiB")
    expect(notebook.notebook).to_contain_text("debug.ipynb")
    expect(notebook.device(1).locator(".jp-mod-mine")).to_have_count(0)


def test_keyboard_alone(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.expect_summary("GPU: none")
    page.keyboard.press("Control+Shift+C")
    expect(page.locator(".lm-CommandPalette-input:visible")).to_be_focused()
    page.keyboard.type("Attach GPU to Notebook")
    expect(page.locator(".lm-CommandPalette-item.lm-mod-active")).to_contain_text("Attach GPU")
    page.keyboard.press("Enter")
    expect(notebook.notebook.get_by_role("button", name="Attach ½ GPU")).to_be_focused()
    page.keyboard.press("Tab")
    one = notebook.notebook.get_by_role("button", name="Attach 1 GPU")
    expect(one).to_be_focused()
    width, style = one.evaluate(
        "node => [getComputedStyle(node).outlineWidth, getComputedStyle(node).outlineStyle]"
    )
    assert style == "solid"
    assert float(width.removesuffix("px")) >= 1
    page.keyboard.press("Enter")
    notebook.expect_summary("GPU: 1")
    expect(notebook.device(0)).to_contain_text("nothing free")
    notebook.command("genv-jupyter:release")
    notebook.expect_summary("GPU: none")


def test_popover_of_notebook_7_closes_and_gives_the_focus_back(
    jupyter: Jupyter, page: Page
) -> None:
    others(jupyter)
    notebook = Notebook7(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.button.focus()
    page.keyboard.press("Enter")
    expect(notebook.notebook.get_by_role("button", name="Attach ½ GPU")).to_be_focused()
    notebook.shoot("notebook7", themes=("light", "dark"))
    page.keyboard.press("Escape")
    expect(notebook.panel).to_have_count(0)
    expect(notebook.button).to_be_focused()
    notebook.button.click()
    page.locator(".jp-Notebook").click(position={"x": 5, "y": 5})
    expect(notebook.panel).to_have_count(0)


def test_restart_keeps_what_was_granted(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.show()
    notebook.attach("½ GPU")
    notebook.expect_summary("GPU: ½")
    jupyter.until(lambda: jupyter.environment("llm.ipynb")["applied"] == "live")
    before = jupyter.environment("llm.ipynb")
    notebook.command("genv-jupyter:restart")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("All variables of the kernel will be lost.")
    dialog.get_by_role("button", name="Cancel").click()
    assert jupyter.environment("llm.ipynb")["pid"] == before["pid"]
    notebook.command("genv-jupyter:restart")
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    jupyter.until(lambda: jupyter.environment("llm.ipynb")["pid"] not in (before["pid"], None))
    notebook.expect_idle()
    notebook.run(2)
    after = jupyter.environment("llm.ipynb")
    assert after["grants"] == before["grants"]
    notebook.expect_summary("GPU: ½")


def test_pictures_of_a_narrow_and_of_a_wide_panel(jupyter: Jupyter, page: Page) -> None:
    others(jupyter)
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.show()
    notebook.shoot("panel-without-grant", themes=("light", "dark"))
    notebook.attach("½ GPU")
    notebook.expect_summary("GPU: ½")
    notebook.shoot("panel", themes=("light", "dark"))
    notebook.notebook.get_by_role("button", name="Other…").click()
    notebook.notebook.get_by_label("Memory").fill("4G")
    expect(notebook.notebook).to_contain_text("50 %, 3.7 GiB, leaves 8.3 GiB")
    notebook.shoot("form", themes=("light", "dark"))
    for name, width in (("narrow", 200), ("wide", 460)):
        notebook.resize(width)
        notebook.shoot(f"panel-{name}")
        inside, outside = notebook.panel.evaluate("node => [node.scrollWidth, node.clientWidth]")
        assert inside <= outside, "nothing is cut off"
