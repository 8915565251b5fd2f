"""A host with 256 devices and 2,000 environments: what the page has to do stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from genv_jupyter.devices.simulated import simulated_uuid
from tests.browser.crowds import Crowd, Stream
from tests.browser.jupyter import Jupyter
from tests.browser.pages import Notebook

DEVICES, ENVIRONMENTS = 256, 2000
ELEMENTS = 1000
"""In the whole panel, at most: some screens of rows, and not thousands of them."""
UPDATES = 20


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[Jupyter]:
    with Jupyter(tmp_path, {"GENV_JUPYTER_SIMULATE": "1x24GiB"}) as server:
        server.notebook("llm.ipynb", "1")
        yield server
        server.close_kernels()


def test_what_is_drawn_does_not_grow_with_the_host(jupyter: Jupyter, page: Page) -> None:
    calls: list[str] = []
    stream = Stream(page, Crowd(DEVICES, ENVIRONMENTS))
    notebook = Notebook(page, jupyter, "llm.ipynb")
    page.goto(jupyter.page("llm.ipynb"))
    page.locator(".jp-NotebookPanel-toolbar").wait_for()
    notebook.expect_idle()
    notebook.command("genv-jupyter:show")
    expect(notebook.device(0)).to_be_visible()
    page.on("request", lambda call: calls.append(call.url) if "genv-jupyter" in call.url else None)
    everything = notebook.panel.locator("*")
    assert everything.count() < ELEMENTS
    notebook.shoot("scale-top", themes=("light", "dark"))

    environments = notebook.panel.get_by_role("region", name="Environments")
    environments.get_by_label("Sort").select_option("used")
    for _ in range(UPDATES):
        stream.tell(stream.crowd.change(50))
    page.wait_for_timeout(500)
    before = everything.count()
    assert before < ELEMENTS
    notebook.shoot("scale-list", themes=("light", "dark"))
    for _ in range(UPDATES):
        stream.tell(stream.crowd.change(50))
    page.wait_for_timeout(500)
    assert everything.count() < 1.2 * before, "a change of rows leaves nothing behind"
    assert len(stream.sockets) == 1
    assert calls == [], "nothing is asked for because something was told"

    # The filter finds what is not drawn.
    environments.get_by_label("Filter environments").fill("experiment-1234")
    expect(environments.get_by_role("listitem")).to_have_count(1)
    environments.get_by_label("Filter environments").fill("")
    environments.get_by_role("button", name="By owner").click()
    expect(environments.get_by_text("250 environments")).to_have_count(1)


def test_long_lists_by_the_keyboard(jupyter: Jupyter, page: Page) -> None:
    Stream(page, Crowd(DEVICES, ENVIRONMENTS))
    notebook = Notebook(page, jupyter, "llm.ipynb")
    page.goto(jupyter.page("llm.ipynb"))
    page.locator(".jp-NotebookPanel-toolbar").wait_for()
    notebook.expect_idle()
    notebook.command("genv-jupyter:show")
    first = notebook.panel.get_by_role("button", name="GPU 0", exact=True)
    first.wait_for()
    page.wait_for_function("document.activeElement?.closest('#genv-jupyter-panel')")  # as shown
    first.focus()
    page.keyboard.press("ArrowDown")
    expect(notebook.panel.get_by_role("button", name="GPU 1", exact=True)).to_be_focused()
    page.keyboard.press("End")
    last = notebook.panel.get_by_role("button", name="GPU 255", exact=True)
    expect(last).to_be_focused()
    expect(last).to_be_in_viewport()
    page.keyboard.press("Enter")
    device = notebook.panel.locator(f"[data-uuid='{simulated_uuid(255)}']")
    expect(device).to_contain_text("experiment-0255")
    page.keyboard.press("ArrowUp")
    expect(notebook.panel.get_by_role("button", name="GPU 254", exact=True)).to_be_focused()
    page.keyboard.press("Home")
    expect(first).to_be_focused()
    expect(first).to_be_in_viewport()
