"""What comes of a request is told before it is made: by the form and by the quick choices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import SCREENSHOTS, Notebook


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[Jupyter]:
    with Jupyter(tmp_path, {"GENV_JUPYTER_SIMULATE": "2x24GiB"}) as server:
        server.notebook("llm.ipynb", "%gpu")
        yield server


@pytest.fixture
def notebook(jupyter: Jupyter, page: Page) -> Notebook:
    notebook = Notebook(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.show()
    return notebook


def hold(jupyter: Jupyter, name: str, **request: object) -> str:
    """Have another notebook hold something; return its environment's id."""
    kernel = jupyter.open_kernel(jupyter.notebook(name, "1"))
    jupyter.gpu("PUT", f"environments/{kernel}", request)
    return kernel


def test_what_cannot_be_is_told_before_the_click(notebook: Notebook) -> None:
    panel = notebook.notebook
    attach = notebook.fill_form(gpus="abc")
    share = panel.get_by_label("GPUs", exact=True)
    expect(panel).to_contain_text("not a number")
    expect(attach).to_be_disabled()
    share.fill("3")
    expect(panel).to_contain_text("There are only 2 GPUs here")
    expect(attach).to_be_disabled()
    share.press("Enter")
    assert notebook.jupyter.environment("llm.ipynb")["request"] is None
    share.fill("0.25")
    expect(panel).to_contain_text("25 %, 6 GiB, leaves 18 GiB")
    share.press("Enter")
    notebook.expect_summary("GPU: ¼")
    expect(share).to_have_count(0)


def test_what_was_refused_stays_in_the_form_to_be_mended(notebook: Notebook) -> None:
    """Somebody is faster than the click."""
    panel = notebook.notebook
    attach = notebook.fill_form(gpus="2")
    expect(panel).to_contain_text("whole, 24 GiB, leaves 0 GiB")
    placements = "**/genv-jupyter/v1/placements*"
    notebook.page.route(placements, lambda route: route.abort())
    hold(notebook.jupyter, "debug.ipynb", memory="4G")
    attach.click()
    expect(notebook.refusal).to_contain_text("debug.ipynb")
    expect(panel.get_by_label("GPUs", exact=True)).to_have_value("2")
    notebook.page.unroute(placements)


def test_slider_stepper_and_devices_are_one_choice(notebook: Notebook) -> None:
    panel = notebook.notebook
    notebook.resize(340)
    attach = notebook.fill_form(gpus="0.5")
    share = panel.get_by_label("GPUs", exact=True)
    expect(panel).to_contain_text("50 %, 12 GiB, leaves 12 GiB")
    panel.screenshot(path=SCREENSHOTS / "attach-light.png")
    slider = panel.get_by_role("slider")
    slider.press("ArrowRight")
    expect(share).to_have_value("0.55")
    slider.press("Home")
    expect(share).to_have_value("")
    expect(panel).to_contain_text("no ceiling on compute")
    expect(attach).to_be_disabled()
    more = panel.get_by_role("button", name="One GPU more")
    more.click()
    expect(share).to_have_value("1")
    more.click()
    expect(more).to_be_disabled()
    expect(panel).to_contain_text("2 whole GPUs")
    panel.get_by_role("button", name="One GPU less").click()
    panel.get_by_role("checkbox", name="GPU 1").check()
    panel.get_by_label("Memory").fill("4GiB")
    expect(panel).to_contain_text("4.3 GB")
    expect(panel).to_contain_text("4 GiB, leaves 20 GiB")
    attach.click()
    notebook.expect_summary("GPU: 4 GiB")
    [grant] = notebook.jupyter.environment("llm.ipynb")["grants"]
    [_, second] = notebook.jupyter.gpu("GET", "devices")
    assert (grant["device"], grant["compute"]) == (second["uuid"], None)


def test_a_quick_choice_tells_what_it_comes_to_and_who_stands_in_its_way(
    notebook: Notebook,
) -> None:
    jupyter, panel = notebook.jupyter, notebook.notebook
    half = panel.get_by_role("button", name="Attach ½ GPU")
    whole = panel.get_by_role("button", name="Attach 1 GPU")
    half.hover()
    expect(panel).to_contain_text("GPU 0: 50 %, 12 GiB, leaves 12 GiB")
    kernel = hold(jupyter, "debug.ipynb", memory="4G", devices=["0"])
    hold(jupyter, "viz.ipynb", memory="4G", devices=["1"])
    half.focus()
    notebook.page.keyboard.press("Tab")
    expect(whole).to_be_focused()
    expect(panel).to_contain_text("GPU 0: debug.ipynb of")
    notebook.shoot("form-blocked", themes=("light", "dark"))
    assert jupyter.environment("llm.ipynb")["request"] is None, "nothing was asked for"
    whole.hover()
    panel.get_by_role("button", name="Release debug.ipynb").click()
    jupyter.until(lambda: not jupyter.gpu("GET", f"environments/{kernel}")["grants"])
    whole.hover()
    expect(panel).to_contain_text("GPU 0: whole, 24 GiB, leaves 0 GiB")
    whole.click()
    notebook.expect_summary("GPU: 1")
