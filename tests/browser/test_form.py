"""The form for what the quick choices do not offer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import Notebook


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[Jupyter]:
    with Jupyter(tmp_path, {"GENV_JUPYTER_SIMULATE": "2x24GiB"}) as server:
        server.notebook("llm.ipynb", "%gpu")
        yield server


def test_what_was_refused_stays_in_the_form_to_be_mended(jupyter: Jupyter, page: Page) -> None:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.show()
    panel = notebook.notebook
    panel.get_by_role("button", name="Other…").click()
    share = panel.get_by_label("GPUs")
    share.fill("abc")
    expect(panel).to_contain_text("not a number")
    share.fill("3")
    panel.get_by_role("button", name="Attach", exact=True).click()
    expect(panel).to_contain_text("There are only 2 GPUs here")
    expect(share).to_have_value("3")
    share.fill("0.25")
    share.press("Enter")
    notebook.expect_summary("GPU: ¼")
    expect(share).to_have_count(0)
