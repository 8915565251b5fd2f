"""What is used of what a notebook has, how strong its limits are, and what is folded away."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.test_kernel_cache import CUDA

__all__ = ["fake_driver"]

GIB = 2**30


def test_use_against_the_cap(page: Page, tmp_path: Path, fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    first, second = driver.uuids
    driver.set_external(second, 6 * GIB)
    with Jupyter(tmp_path, driver.environ) as jupyter:
        jupyter.notebook("llm.ipynb", f"{CUDA}\nbuffer = Buffer(3)")
        jupyter.notebook("debug.ipynb", "1 + 1")
        notebook = Notebook(page, jupyter, "llm.ipynb")
        notebook.open()
        notebook.show()
        notebook.attach_form(memory="3.6G", device="GPU 0")
        expect(notebook.notebook).to_contain_text("0 of 3.4 GiB, peak 0 GiB")
        kernel = jupyter.open_kernel("debug.ipynb")
        jupyter.gpu("PUT", f"environments/{kernel}", {"fraction": 0.5, "devices": [first]})

        # Memory that nobody explains may be this notebook's: then its use is not known.
        driver.set_external(first, 2 * GIB)
        used = notebook.notebook.locator(".jp-Genv-usage")
        expect(used).to_contain_text("use unknown, of 3.4 GiB", timeout=PATIENCE)
        status = page.locator(".jp-Genv-statusItem")
        expect(status).to_have_text("GPU 0 · ?/3.4 GiB")
        notebook.shoot("usage-unknown", themes=("light", "dark"))
        driver.set_external(first, 0)

        notebook.run(0)
        expect(used).to_contain_text("3.3 of 3.4 GiB, close to the cap", timeout=PATIENCE)
        expect(used).to_have_attribute("data-level", "close")
        expect(status).to_have_text("GPU 0 · 3.3/3.4 GiB")
        expect(notebook.notebook).to_contain_text("A smaller batch size makes room")
        notebook.shoot("usage-close", themes=("light", "dark"))

        # The limits are named, and their reasons can be unfolded by the keyboard too.
        limits = notebook.notebook.locator("details")
        reason = limits.get_by_text("PyTorch, JAX and CuPy are told")
        expect(limits.locator("summary")).to_contain_text("memory cooperative")
        expect(reason).not_to_be_visible()
        limits.locator("summary").press("Enter")
        expect(reason).to_be_visible()
        inner = notebook.panel.locator(".jp-Genv-panel")
        inner.evaluate("node => void (node.style.width = '200px')")
        notebook.shoot("usage-narrow", themes=("light", "dark"))
        inside, outside = inner.evaluate("node => [node.scrollWidth, node.clientWidth]")
        assert inside <= outside == 200, "nothing is cut off"
        inner.evaluate("node => void (node.style.width = '')")

        # What is folded away is so at the next visit.
        notebook.device(0).get_by_role("button", name="GPU 0", exact=True).click()
        expect(notebook.device(0)).to_contain_text("2 holders")
        expect(notebook.device(0)).not_to_contain_text("debug.ipynb")
        notebook.panel.get_by_role("button", name="This notebook").press("Enter")
        expect(used).to_have_count(0)
        notebook.shoot("folded", themes=("light", "dark"))
        page.wait_for_timeout(1500)  # JupyterLab writes its state down a while later
        page.goto(jupyter.page("llm.ipynb").removesuffix("&reset"))
        expect(notebook.button).to_be_visible(timeout=2 * PATIENCE)
        notebook.show()
        expect(notebook.device(0)).to_contain_text("2 holders")
        expect(used).to_have_count(0)
        expect(notebook.device(1)).to_contain_text("Used by no visible process")
        jupyter.close_kernels()
