"""Waiting for what others hold: who is before, how it comes, and how to leave the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook, Notebook7


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[Jupyter]:
    with Jupyter(
        tmp_path,
        {"GENV_JUPYTER_SIMULATE": "1x24GiB"},
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ) as server:
        for name in ("llm", "debug"):
            server.notebook(f"{name}.ipynb", "1")
        yield server
        server.close_kernels()


@pytest.mark.parametrize("kind", [Notebook, Notebook7], ids=["lab", "notebook7"])
def test_wait_leave_wait_again_and_get_it(
    jupyter: Jupyter, page: Page, kind: Callable[..., Notebook]
) -> None:
    other = jupyter.open_kernel("debug.ipynb")
    jupyter.gpu("PUT", f"environments/{other}", {"gpus": 1})
    notebook = kind(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.show()
    notebook.attach("1 GPU")
    expect(notebook.refusal).to_contain_text("debug.ipynb")
    wait = notebook.refusal.get_by_role("button", name="Wait up to 1 h")
    wait.click()
    queue = notebook.panel.get_by_role("region", name="Queue")
    expect(queue.get_by_role("listitem")).to_contain_text("1. llm.ipynb")
    notebook.shoot(f"queue-{kind.__name__.lower()}", themes=("light", "dark"))
    notebook.notebook.get_by_role("button", name="Leave the queue").click()
    expect(queue).to_have_count(0)
    assert jupyter.gpu("GET", "queue") == []

    # By the form: what stands in the way is told, and that it can be waited for.
    notebook.fill_form(gpus="1")
    notebook.notebook.get_by_text("Duration, name, wait").click()
    notebook.notebook.get_by_label("Wait").fill("30m")
    notebook.notebook.get_by_role("button", name="Wait for it").click()
    expect(queue.get_by_role("listitem")).to_contain_text("1. llm.ipynb")

    # The row of the one who holds it has a way to release it.
    row = notebook.panel.locator(".jp-Genv-row").filter(has_text="debug.ipynb").first
    row.hover()
    row.get_by_role("button", name="Release what debug.ipynb has").click()
    notebook.expect_summary("GPU: 1")
    told = notebook.notebook.get_by_role("button", name="Keep")
    expect(told).to_be_visible(timeout=PATIENCE)
    notebook.shoot(f"queue-served-{kind.__name__.lower()}", themes=("light",))
    told.click()
    expect(told).to_have_count(0)
    expect(queue).to_have_count(0)
    notebook.expect_summary("GPU: 1")
