"""What people are told in a corner of the window, by a real broker, and what they answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.integration.daemons import User, make_users, serving
from tests.integration.test_kernel_cache import CUDA

__all__ = ["fake_driver"]

RULES = {"cap_slack": 0, "patience": 0, "idle": "act", "idle_after": 12, "idle_grace": 600}
TOLD = 2 * PATIENCE


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


def told(page: Page, text: str) -> Locator:
    return page.locator(".Toastify__toast").filter(has_text=re.compile(text))


def test_cap_idle_queue_and_lost(page: Page, tmp_path: Path, fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    jupyter = Jupyter(tmp_path, driver.environ)
    (tmp_path / "config" / "jupyter_genv_config.json").write_text(json.dumps({"Rules": RULES}))
    with jupyter:
        jupyter.notebook("llm.ipynb", f"{CUDA}\nbuffer = Buffer(3)")
        jupyter.notebook("debug.ipynb", "1 + 1")
        notebook = Notebook(page, jupyter, "llm.ipynb")
        notebook.open()
        notebook.show()

        # A place in the queue is reached.
        others = []
        for device in driver.uuids:
            kernel = jupyter.open_kernel(jupyter.notebook(f"{device[-1]}.ipynb", "1"))
            jupyter.gpu("PUT", f"environments/{kernel}", {"devices": [device]})
            others.append(kernel)
        notebook.attach("1 GPU")
        notebook.refusal.get_by_role("button", name="Wait up to 1 h").click()
        expect(notebook.panel.get_by_role("region", name="Queue")).to_be_visible()
        jupyter.gpu("DELETE", f"environments/{others[0]}")
        turn = told(page, r"The turn of llm\.ipynb has come")
        expect(turn).to_be_visible(timeout=TOLD)
        notebook.shoot("toast-queue", toasts=True)
        turn.get_by_role("button", name="Keep").click()
        expect(turn).to_have_count(0)
        notebook.expect_summary("GPU: 1")

        # Nothing is done with it: it will be given back, unless it is kept.
        idle = told(page, r"llm\.ipynb, until .*\d\d:\d\d: Nothing has run here for 12 s")
        expect(idle.last).to_be_visible(timeout=TOLD)
        notebook.shoot("toast-idle", toasts=True)
        with page.expect_request(lambda call: call.method == "PATCH") as kept:
            idle.last.get_by_role("button", name="Keep").click()
        assert kept.value.post_data_json == {"keep": True}
        answer = kept.value.response()
        assert answer is not None
        assert answer.ok
        expect(idle).to_have_count(0)  # it begins anew

        # More is used than was granted.
        notebook.attach_form(memory="2G", device="GPU 0")
        notebook.expect_summary("GPU: 1.9 GiB")
        notebook.run(0)
        over = told(page, r"llm\.ipynb: 3.3 GiB of GPU 0 are used here, and 1.9 GiB granted")
        expect(over).to_be_visible(timeout=TOLD)
        status = page.locator(".jp-Genv-statusItem")
        expect(status).to_have_attribute("data-level", "over", timeout=TOLD)
        notebook.shoot("toast-cap", toasts=True)

        # The device is lost.
        driver.lose(driver.uuids[0])
        lost = told(page, r"llm\.ipynb: GPU 0 has fallen off the bus")
        expect(lost).to_be_visible(timeout=TOLD)
        notebook.shoot("toast-lost", toasts=True)
        jupyter.close_kernels()


def test_asked_by_somebody_else(
    page: Page,
    browser: Browser,
    tmp_path: Path,
    users: dict[str, User],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two people of one host: one has both GPUs, the other sees it, asks, waits and gets one."""
    ann, bob = users["ann"], users["bob"]
    for name in ("ann", "bob"):
        (tmp_path / name).mkdir()
    with (
        serving(monkeypatch),
        Jupyter(tmp_path / "ann", {}, user=ann) as hers,
        Jupyter(tmp_path / "bob", {}, user=bob) as his,
        browser.new_context(viewport={"width": 1280, "height": 800}) as window,
    ):
        for name in ("llm", "viz"):
            hers.notebook(f"{name}.ipynb", "1 + 1")
        holder = Notebook(page, hers, "llm.ipynb")
        holder.open()
        holder.show()
        holder.attach("1 GPU")
        holder.expect_summary("GPU: 1")
        second = hers.open_kernel("viz.ipynb")
        hers.gpu("PUT", f"environments/{second}", {"gpus": 1})

        asker = Notebook(window.new_page(), his, his.notebook("debug.ipynb", "1 + 1"))
        asker.open()
        asker.show()
        for device in (0, 1):
            expect(asker.device(device)).to_contain_text(ann.name)  # who holds it: no click
            expect(asker.device(device).locator(".jp-mod-other").first).to_be_visible()
        expect(asker.panel).not_to_contain_text("llm.ipynb")  # her notebooks' names are hers
        asker.attach("1 GPU")
        asker.refusal.get_by_role("button", name=f"Ask {ann.name}").click()
        expect(asker.refusal).to_contain_text(f"Asked: {ann.name}")
        asker.shoot("ask-asked", themes=("light", "dark"))

        # Both of her notebooks are told, by whom; she answers each as she likes.
        first = told(page, rf"llm\.ipynb: .*{bob.name} needs what is held here")
        other = told(page, rf"viz\.ipynb: .*{bob.name} needs what is held here")
        expect(first).to_be_visible(timeout=TOLD)
        expect(other).to_be_visible(timeout=TOLD)
        holder.shoot("toast-ask", toasts=True)
        first.get_by_role("button", name="In 30 min").click()
        expect(first).to_have_count(0, timeout=TOLD)
        hers.until(lambda: hers.environment("llm.ipynb")["expires"] is not None)
        answer = told(asker.page, rf"{ann.name} answers: it is given back in \d+ min, by its lease")
        expect(answer).to_be_visible(timeout=TOLD)
        asker.shoot("toast-answer", toasts=True)

        # He waits for the other one, which she releases now.
        asker.refusal.get_by_role("button", name="Wait up to 1 h").click()
        expect(asker.panel.get_by_role("region", name="Queue")).to_contain_text("1. debug.ipynb")
        expect(holder.panel.get_by_role("region", name="Queue")).to_contain_text(bob.name)
        other.get_by_role("button", name="Release now").click()
        asker.expect_summary("GPU: 1")
        turn = told(asker.page, r"The turn of debug\.ipynb has come")
        expect(turn).to_be_visible(timeout=TOLD)
        assert hers.gpu("GET", f"environments/{second}")["grants"] == []
        asker.shoot("ask-served")
        for server in (hers, his):
            server.close_kernels()
