"""A process that outlives its kernel with memory of a GPU: shown, and ended by one click."""

from __future__ import annotations

import signal
from pathlib import Path

from playwright.sync_api import Page, expect

from genv_jupyter.isolation import processes
from tests.browser.axe import unseen_focus, violations
from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.test_leftovers_real import LEAVE

__all__ = ["fake_driver"]


def test_one_click_ends_it(page: Page, tmp_path: Path, fake_driver: MakeDriver) -> None:
    with Jupyter(tmp_path, fake_driver().environ) as jupyter:
        notebook = Notebook(page, jupyter, jupyter.notebook("train.ipynb", LEAVE))
        notebook.open()
        notebook.show()
        leftovers = notebook.panel.get_by_role("region", name="Leftovers")
        notebook.attach("½ GPU")
        notebook.expect_summary("GPU: ½")
        notebook.run(0)
        worker = int(notebook.output(0).locator("pre").inner_text())
        start = processes.start_of(worker)
        assert start is not None
        try:
            expect(notebook.notebook).to_contain_text("1.3 of 11.8 GiB", timeout=PATIENCE)
            expect(leftovers).to_have_count(0)  # its kernel lives

            kernel = jupyter.environment("train.ipynb")["id"]
            jupyter.call("POST", f"api/kernels/{kernel}/restart")
            row = leftovers.get_by_role("listitem")
            expect(row).to_contain_text(f"(process {worker})", timeout=PATIENCE)
            expect(row).to_contain_text("GPU 0: 1.3 GiB")
            expect(row).to_contain_text("left of train.ipynb since its restart")
            told = notebook.page.locator(".Toastify__toast").filter(has_text="outlived")
            expect(told).to_contain_text("--end all")  # a longer one is cut there
            notebook.shoot("leftovers", themes=("light", "dark"))
            assert violations(page, f"#{notebook.panel_id}") == []
            assert unseen_focus(page, f"#{notebook.panel_id}") == []

            assert processes.alive(worker, start), "nothing but a click ends it"
            row.get_by_role("button", name=f"End process {worker}").click()
            expect(leftovers).to_have_count(0, timeout=PATIENCE)
            assert not processes.alive(worker, start)
            expect(notebook.notebook).to_contain_text("0 of 11.8 GiB", timeout=PATIENCE)
            notebook.expect_summary("GPU: ½")
        finally:
            processes.send(worker, start, signal.SIGKILL)
            jupyter.close_kernels()
