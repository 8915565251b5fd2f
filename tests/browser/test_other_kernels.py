"""A kernel that cannot be told while it lives: restart to apply, watched until it is free."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook

SIMULATE = {"GENV_JUPYTER_SIMULATE": "2x24GiB"}
BASH = (sys.executable, "-m", "bash_kernel", "-f", "{connection_file}")
CELL = 'echo "it sees ${CUDA_VISIBLE_DEVICES:-nothing}"'


@pytest.fixture
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    with Jupyter(tmp_path_factory.mktemp("other"), SIMULATE) as jupyter:
        yield jupyter
        jupyter.close_kernels()


def test_bash_is_given_a_device_at_its_restart_and_watched_when_it_gives_it_back(
    jupyter: Jupyter, page: Page
) -> None:
    kernel = jupyter.kernelspec("bash", *BASH, language="bash")
    notebook = Notebook(page, jupyter, jupyter.notebook("train.ipynb", CELL, kernel=kernel))
    notebook.open()
    notebook.show()
    notebook.attach("½ GPU")
    notebook.expect_summary("GPU: ½, at restart")
    expect(notebook.notebook).to_contain_text("Takes effect at restart.")
    notebook.expect_idle()
    notebook.run(0)
    expect(notebook.output(0)).to_have_text("it sees nothing")
    notebook.shoot("bash-at-restart", themes=("light", "dark"))

    notebook.notebook.get_by_role("button", name="Restart").click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(notebook.toast).to_have_text(
        "train.ipynb restarted. GPU 0: 50 %, 12 GiB, live. SIMULATED", timeout=PATIENCE
    )
    notebook.expect_summary("GPU: ½")
    notebook.expect_idle()
    notebook.run(0)
    [grant] = jupyter.environment("train.ipynb")["grants"]
    expect(notebook.output(0)).to_have_text(f"it sees {grant['device']}")
    notebook.shoot("bash-live", themes=("light", "dark"))

    notebook.release()
    expect(notebook.notebook).to_contain_text("Being watched", timeout=PATIENCE)
    expect(notebook.notebook.get_by_role("button", name="Restart to free")).to_be_visible()
    expect(notebook.device(0)).to_contain_text("draining")
    notebook.shoot("bash-watched", themes=("light", "dark"))
    notebook.expect_summary("GPU: none")
    expect(notebook.device(0)).to_contain_text("24 GiB free")
