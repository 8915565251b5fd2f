"""The story of three notebooks, as their user clicks through it over NVIDIA's own bindings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter import Jupyter
from tests.browser.pages import Notebook
from tests.fakedriver import FakeDriver
from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.fakedriver.remote import bare

__all__ = ["fake_driver"]

ATTACH, SEES, ALLOCATE = range(3)
SEES_CELL = """\
from cuda.bindings import driver as cuda
assert int(cuda.cuInit(0)[0]) == 0, "no device"
gpus = [cuda.cuDeviceGet(n)[1] for n in range(cuda.cuDeviceGetCount()[1])]
[cuda.cuDeviceGetUuid(gpu)[1].bytes.hex() for gpu in gpus]"""
ALLOCATE_CELL = """\
error, context = cuda.cuCtxCreate(None, 0, gpus[0])
error, memory = cuda.cuMemAlloc(2**30)
int(error)"""


class Desk(Notebook):
    """One JupyterLab, with one of several notebooks in front."""

    def front(self, name: str) -> None:
        """Bring a notebook to the front."""
        self.command("docmanager:open", path=name, factory="Notebook")
        expect(self.notebook).to_contain_text(name)
        expect(self.button).to_be_visible()

    def sees(self) -> list[str]:
        """Return the devices that NVIDIA's library finds; CUDA is initialised by this."""
        self.run(SEES)
        said = self.output(SEES).inner_text().strip()
        return list(json.loads(said.rpartition("\n")[2].replace("'", '"')))

    def allocate(self) -> None:
        self.run(ALLOCATE)
        expect(self.output(ALLOCATE)).to_have_text(re.compile(r"0\s*$"))


@pytest.fixture
def driver(fake_driver: MakeDriver) -> FakeDriver:
    return fake_driver()


@pytest.fixture
def jupyter(driver: FakeDriver, tmp_path: Path) -> Iterator[Jupyter]:
    with Jupyter(tmp_path, driver.environ) as running:
        for name, request in (("llm", "1"), ("debug", "--memory 4G"), ("viz", "0.5")):
            running.notebook(f"{name}.ipynb", f"%gpu attach {request}", SEES_CELL, ALLOCATE_CELL)
        yield running
        running.close_kernels()


def test_story(driver: FakeDriver, jupyter: Jupyter, page: Page) -> None:
    first, second = driver.uuids
    desk = Desk(page, jupyter, "llm.ipynb")
    desk.open()
    desk.show()
    expect(desk.panel.get_by_text("SIMULATED", exact=True)).to_have_count(0)

    # The language model takes a whole GPU, by a click.
    desk.attach("1 GPU")
    desk.expect_summary("GPU: 1")
    assert desk.sees() == bare(first)
    desk.allocate()

    # Debugging takes 4 GB of the other, in the form; visualisation half of it, by the magic.
    desk.front("debug.ipynb")
    desk.attach_form(memory="4G")
    desk.expect_summary("GPU: 3.7 GiB")
    assert desk.sees() == bare(second)
    desk.allocate()
    desk.front("viz.ipynb")
    desk.run(ATTACH)
    desk.expect_summary("GPU: ½")
    assert desk.sees() == bare(second)
    desk.allocate()
    expect(desk.notebook).to_contain_text("1.3 of 11.8 GiB, peak 1.3 GiB")
    expect(desk.device(0)).to_contain_text("llm.ipynb")
    expect(desk.device(1)).to_contain_text("debug.ipynb")
    expect(desk.device(1)).to_contain_text("viz.ipynb")
    used = {context.device: 0 for context in driver.contexts()}
    for context in driver.contexts():
        used[context.device] += 1
    assert used == {first: 1, second: 2}

    # Run All works any number of times.
    before = jupyter.environment("viz.ipynb")["grants"]
    desk.command("notebook:run-all-cells")
    desk.finished(ALLOCATE)
    desk.run(ATTACH)
    assert jupyter.environment("viz.ipynb")["grants"] == before
    desk.shoot("story-1-shared", themes=("light", "dark"))

    # Debugging asks for a whole GPU, and is told who holds what since when.
    desk.front("debug.ipynb")
    everybody = jupyter.gpu("GET", "devices")
    desk.attach("1 GPU")
    expect(desk.refusal).to_contain_text(
        re.compile(r"GPU 0: llm\.ipynb of \S+ holds all of it since \d\d:\d\d")
    )
    expect(desk.refusal).to_contain_text(re.compile(r"GPU 1: viz\.ipynb of \S+ holds"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    desk.expect_summary("GPU: 3.7 GiB")
    assert grants(jupyter) == {device["uuid"]: device["grants"] for device in everybody}
    desk.shoot("story-2-refused")

    # The language model releases; CUDA lives in it, so its device drains and is given to nobody.
    desk.front("llm.ipynb")
    desk.release()
    desk.expect_summary("GPU: draining")
    free = desk.notebook.get_by_role("button", name="Restart to free")
    expect(free).to_be_visible()
    desk.shoot("story-3-draining", themes=("light", "dark"))
    desk.front("debug.ipynb")
    desk.attach("1 GPU")
    expect(desk.refusal).to_contain_text("draining")
    desk.front("llm.ipynb")
    free.click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    desk.expect_summary("GPU: none")
    expect(desk.device(0)).not_to_contain_text("llm.ipynb")

    # Debugging asks again. CUDA lives there too: too late, and a restart is offered.
    desk.front("debug.ipynb")
    desk.attach("1 GPU")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("CUDA")
    desk.shoot("story-4-too-late")
    dialog.get_by_role("button", name="Cancel").click()
    desk.expect_summary("GPU: 3.7 GiB")
    old = jupyter.environment("debug.ipynb")
    assert [grant["device"] for grant in old["grants"]] == [second]
    desk.attach("1 GPU")
    dialog.get_by_role("button", name="At next start").click()
    desk.expect_summary("GPU: 1, at restart")
    assert jupyter.environment("debug.ipynb")["pid"] == old["pid"]
    desk.notebook.get_by_role("button", name="Restart to free").click()
    dialog.get_by_role("button", name="Restart").click()
    jupyter.until(lambda: jupyter.environment("debug.ipynb")["pid"] not in (old["pid"], None))
    desk.expect_summary("GPU: 1")
    desk.expect_idle()
    assert desk.sees() == bare(first)
    expect(desk.device(0)).to_contain_text("debug.ipynb")
    desk.shoot("story-5-granted")


def grants(jupyter: Jupyter) -> dict[str, object]:
    return {device["uuid"]: device["grants"] for device in jupyter.gpu("GET", "devices")}
