"""`%gpu panel` on a screen: in JupyterLab and Notebook 7, by clicks, light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from genv_jupyter.kernel.panel import THREAD
from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook, Notebook7
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.test_kernel_cache import CUDA

__all__ = ["fake_driver"]

PANEL, ALLOCATE, POLLS, WATCH, LONG = range(5)
CELLS = (
    "%gpu panel",
    f"{CUDA}\nbuffer = Buffer(3)",
    "import time; panel = __import__('genv_jupyter.kernel.panel').kernel.panel._current\n"
    f"[t.name for t in __import__('threading').enumerate()].count({THREAD!r}), panel._shown",
    "%gpu watch",
    "print('begin')\ntime.sleep(2.5)\nprint('done')",
)


@pytest.fixture
def jupyter(tmp_path_factory: pytest.TempPathFactory, fake_driver: MakeDriver) -> Iterator[Jupyter]:
    with Jupyter(
        tmp_path_factory.mktemp("widgets"),
        fake_driver().environ,
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ) as server:
        server.notebook("llm.ipynb", *CELLS)
        server.notebook("debug.ipynb", "%gpu usage")
        yield server
        server.close_kernels()


@pytest.mark.parametrize("kind", [Notebook, Notebook7], ids=["lab", "notebook7"])
def test_panel(jupyter: Jupyter, page: Page, kind: Callable[..., Notebook]) -> None:
    notebook = kind(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.run(PANEL)
    panel = notebook.output(PANEL)
    button = {
        name: panel.get_by_role("button", name=name)
        for name in ("Attach", "Release", "Empty cache", "Close")
    }
    expect(panel).to_contain_text("has no grant")
    expect(button["Release"]).to_be_disabled()
    button["Attach"].click()
    expect(panel).to_contain_text("nothing of 11.8 GiB, peak nothing")
    expect(panel).to_contain_text("Attached.")
    notebook.run(ALLOCATE)
    expect(panel).to_contain_text("3.3 GiB of 11.8 GiB, peak 3.3 GiB", timeout=PATIENCE)

    button["Empty cache"].click()
    expect(panel).to_contain_text("Nothing came back.", timeout=PATIENCE)
    expect(panel).to_contain_text("3.3 GiB in use here, as before")
    notebook.shoot(f"widget-emptied-{kind.__name__.lower()}")

    # Somebody else has the other one whole: the refusal says so in the panel.
    kernel = jupyter.open_kernel("debug.ipynb")
    jupyter.gpu("PUT", f"environments/{kernel}", {"gpus": 1})
    panel.get_by_label("Amount").fill("2")
    button["Attach"].click()
    expect(panel).to_contain_text(re.compile(r"debug\.ipynb of \S+ holds all of it since"))
    [grant] = jupyter.environment("llm.ipynb")["grants"]
    assert grant["compute"] == 5000
    notebook.shoot(f"widget-{kind.__name__.lower()}", themes=("light", "dark"))

    # It is polled while it is on the screen, and only then.
    notebook.run(POLLS)
    expect(notebook.output(POLLS)).to_contain_text("(1, True)")
    button["Close"].click()
    expect(button["Close"]).to_have_count(0)
    notebook.run(POLLS)
    expect(notebook.output(POLLS)).to_contain_text("(0, ")
    notebook.run(PANEL)
    expect(button["Close"]).to_be_visible()
    notebook.command("notebook:clear-all-cell-outputs")
    expect(button["Close"]).to_have_count(0)
    notebook.run(POLLS)
    expect(notebook.output(POLLS)).to_contain_text("(1, False)")

    # The line of a long cell stands between what it prints, and is one output.
    notebook.run(WATCH)
    notebook.run(LONG)
    expect(notebook.output(LONG)).to_contain_text(
        re.compile(r"begin\s*GPU 0: 3.3 GiB of 11.8 GiB, at most 3.3 GiB in this cell, \d s\s*done")
    )
    notebook.shoot(f"watch-{kind.__name__.lower()}", themes=("light", "dark"))
