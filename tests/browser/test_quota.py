"""*My quota*: there where one is set, and as it is, without anybody asking again and again."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, Request, expect

from tests.browser.axe import violations
from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook

GIB = 2**30
RULE = {"devices": 1.5, "memory": 30 * GIB, "lease": "8h", "hours_week": 40}


def test_what_is_used_and_left_of_it(page: Page, tmp_path: Path) -> None:
    asked: list[Request] = []
    page.on("request", lambda it: asked.append(it) if "/v1/quota" in it.url else None)
    with Jupyter(tmp_path, {"GENV_JUPYTER_SIMULATE": "2x24GiB"}) as jupyter:
        notebook = Notebook(page, jupyter, jupyter.notebook("llm.ipynb", "1 + 1"))
        notebook.open()
        assert not asked, "nobody looks"
        notebook.show()
        expect(notebook.device(1)).to_be_visible()
        quota = notebook.panel.get_by_role("region", name="My quota")
        devices = quota.locator("[data-quantity=devices]")
        memory = quota.locator("[data-quantity=memory]")
        hours = quota.locator("[data-quantity=hours_week]")

        # None is set: there is nothing to be shown, and nothing to be asked, whatever is held.
        notebook.attach("½ GPU")
        notebook.expect_summary("GPU: ½")
        expect(notebook.notebook).to_contain_text("0 of 12 GiB")
        expect(quota).to_have_count(0)
        assert not asked

        # One is set, and the page is told of it.
        jupyter.gpu("PUT", "quotas/default", RULE)
        expect(devices).to_contain_text("0.5 of 1.5")
        notebook.release()
        expect(devices).to_contain_text("0 of 1.5")
        expect(devices).to_contain_text("1.5 left · rule for everybody")
        expect(quota.locator("[data-quantity=lease]")).to_contain_text("at most 8 h 00 min")
        expect(hours).to_contain_text("0 of 40", timeout=PATIENCE)
        expect(hours).to_contain_text("40 left · more from")
        notebook.attach("1 GPU")
        expect(devices).to_contain_text("1 of 1.5")
        expect(devices).to_contain_text("0.5 left")
        expect(memory).to_contain_text("24 of 30 GiB")
        kernel = jupyter.open_kernel(jupyter.notebook("debug.ipynb", "1 + 1"))
        jupyter.gpu("PUT", f"environments/{kernel}", {"memory": 3 * GIB})
        expect(memory).to_contain_text("27 of 30 GiB")
        hours.scroll_into_view_if_needed()
        notebook.shoot("quota", themes=("light", "dark"))
        user = jupyter.gpu("GET", "quota")["user"]
        jupyter.gpu("PUT", f"quotas/user:{user}", {"devices": 0.5})
        jupyter.gpu("DELETE", f"environments/{kernel}")
        expect(devices).to_contain_text("0.5 too much · rule for you")
        expect(devices).to_have_attribute("data-level", "over")
        expect(notebook.notebook).to_contain_text("the quota is 0.5", timeout=PATIENCE)
        hours.scroll_into_view_if_needed()
        notebook.shoot("quota-over", themes=("light", "dark"))
        for theme in ("light", "dark"):
            notebook.theme(theme)
            assert violations(page, f"#{notebook.panel_id}") == []

        # It is not polled, and can be folded away.
        expect(memory).to_contain_text("6 GiB")
        fold = quota.get_by_role("button", name="My quota")
        fold.press("Enter")
        expect(devices).to_have_count(0)
        fold.press("Enter")
        expect(devices).to_be_visible()
        before = len(asked)
        page.wait_for_timeout(3000)
        assert len(asked) == before
        jupyter.gpu("DELETE", "quotas/default")
        jupyter.gpu("DELETE", f"quotas/user:{user}")
        expect(quota).to_have_count(0)
        assert len(asked) <= before + 1, "where nothing is bounded nothing is asked"
        jupyter.close_kernels()
