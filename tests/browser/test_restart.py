"""Restarts with a grant: asked in a cell, in the panel, of a busy kernel, and one that fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook, Notebook7

SIMULATE = {"GENV_JUPYTER_SIMULATE": "2x24GiB"}
LOADED = "import os, sys, types; sys.modules['jax'] = types.ModuleType('jax'); os.getpid()"
"""What makes a restart necessary: JAX, loaded while the GPUs were hidden, has seen none."""
CELLS = (LOADED, "%gpu attach 1 --restart", "print('behind', os.getpid())", "print('last')")
BUSY = ("print('training')\n__import__('time').sleep(600)", "print('behind')")
BACK = "train.ipynb restarted. GPU 0: whole, 24 GiB, live. SIMULATED"
RAN, NOT_RUN = re.compile(r"\[\d+\]:"), "[ ]:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    directory = tmp_path_factory.mktemp("restart")
    with Jupyter(directory, SIMULATE, "--JupyterNotebookApp.expose_app_in_browser=True") as server:
        yield server


@pytest.fixture
def jupyter(server: Jupyter) -> Iterator[Jupyter]:
    yield server
    server.close_kernels()


@pytest.fixture(params=[Notebook, Notebook7], ids=["lab", "notebook7"])
def notebook(request: pytest.FixtureRequest, jupyter: Jupyter, page: Page) -> Notebook:
    kind: Callable[[Page, Jupyter, str], Notebook] = request.param
    return kind(page, jupyter, jupyter.notebook("train.ipynb", *CELLS))


def expect_prompts(notebook: Notebook, *prompts: re.Pattern[str] | str) -> None:
    for cell, prompt in enumerate(prompts):
        expect(notebook.cell(cell).locator(".jp-InputPrompt")).to_have_text(
            prompt, timeout=PATIENCE
        )


def test_a_cell_asks_for_it_and_run_all_again_restarts_nothing(notebook: Notebook) -> None:
    notebook.open()
    notebook.expect_idle()
    before = notebook.jupyter.environment("train.ipynb")["pid"]
    notebook.run_all()
    expect(notebook.toast).to_have_text(BACK, timeout=PATIENCE)
    notebook.shoot(f"restart-told-{type(notebook).__name__.lower()}", toasts=True)
    expect_prompts(notebook, RAN, RAN, NOT_RUN, NOT_RUN)
    expect(notebook.output(1)).to_contain_text("Restarting: the cells behind this one are")
    notebook.expect_summary("GPU: 1")
    notebook.expect_idle()  # the page did not ask for this restart, and knows of it all the same
    expect(notebook.page.get_by_role("dialog")).to_have_count(0)
    notebook.shoot(f"restarted-by-cell-{type(notebook).__name__.lower()}", themes=("light", "dark"))
    after = notebook.jupyter.environment("train.ipynb")["pid"]
    assert after not in (before, None)
    for _ in range(2):
        notebook.run_all()
        expect_prompts(notebook, RAN, RAN, RAN, RAN)
        expect(notebook.output(1)).to_contain_text("Attached already.")
        expect(notebook.output(2)).to_contain_text(f"behind {after}")
    assert notebook.jupyter.environment("train.ipynb")["pid"] == after


def test_the_panel_asks_first_and_names_what_is_lost(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, jupyter.notebook("train.ipynb", *BUSY))
    notebook.open()
    notebook.show()
    notebook.attach("1 GPU")
    notebook.expect_summary("GPU: 1")
    before = jupyter.environment("train.ipynb")
    notebook.run_all()
    expect(notebook.output(0)).to_contain_text("training")
    notebook.command("genv-jupyter:restart")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("A cell is running (print('training'))")
    expect(dialog).to_contain_text("what it has computed is lost")
    expect(dialog).to_contain_text("One cell waits behind it and will not run.")
    notebook.shoot("restart-of-a-busy-kernel", themes=("light",))
    dialog.get_by_role("button", name="Cancel").click()
    assert jupyter.environment("train.ipynb")["pid"] == before["pid"]
    notebook.command("genv-jupyter:restart")
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(notebook.toast).to_have_text(BACK, timeout=PATIENCE)
    expect_prompts(notebook, NOT_RUN, NOT_RUN)
    notebook.expect_idle()
    notebook.shoot("restarted-by-panel", themes=("light", "dark"))
    after = jupyter.environment("train.ipynb")
    assert [grant["since"] for grant in after["grants"]] == [
        grant["since"] for grant in before["grants"]
    ]
    assert after["pid"] not in (before["pid"], None)


def test_a_start_that_fails_is_told_and_the_grant_waits(
    jupyter: Jupyter, page: Page, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    argv = (str(program), "-m", "ipykernel_launcher", "-f", "{connection_file}")
    name = jupyter.notebook("train.ipynb", "1", kernel=jupyter.kernelspec("fragile", *argv))
    notebook = Notebook(page, jupyter, name)
    notebook.open()
    notebook.show()
    notebook.attach("1 GPU")
    notebook.expect_summary("GPU: 1")
    away = program.rename(tmp_path / "away")
    notebook.command("genv-jupyter:restart")
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(notebook.toast).to_contain_text("did not start again", timeout=PATIENCE)
    expect(notebook.toast).to_contain_text("kept for 60 s")
    notebook.expect_summary("GPU: 1, not started")
    for dialog in page.get_by_role("dialog").all():  # JupyterLab has its own word on it
        dialog.get_by_role("button").first.click()
    expect(notebook.notebook).to_contain_text(str(program))
    notebook.shoot("restart-failed", themes=("light", "dark"))
    away.rename(program)
    notebook.notebook.get_by_role("button", name="Restart").click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(notebook.toast.filter(has_text="live")).to_have_text(BACK, timeout=PATIENCE)
    notebook.expect_summary("GPU: 1")
