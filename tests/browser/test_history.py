"""The past of devices and environments in charts, and what can be taken out of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from genv_jupyter.devices.simulated import simulated_uuid
from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, Notebook, Notebook7
from tests.browser.pasts import write_past

SIMULATE = {"GENV_JUPYTER_SIMULATE": "2x24GiB"}
NAMES = ("train.ipynb", "debug.ipynb")
FILLED = """canvas => {
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.some(one => one > 0);
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    jupyter = Jupyter(
        tmp_path_factory.mktemp("history"),
        SIMULATE,
        "--JupyterNotebookApp.expose_app_in_browser=True",
    )
    write_past(jupyter.home / "simulated.sqlite", names=NAMES)
    with jupyter as server:
        server.notebook("llm.ipynb", "1 + 1")
        yield server
        server.close_kernels()


def charts(page: Page) -> Locator:
    return page.locator(".jp-Genv-history:visible .jp-Genv-chart")


def legend(page: Page, chart: int) -> Locator:
    return charts(page).nth(chart).locator(".u-legend")


def test_a_device_by_environment_over_time(server: Jupyter, page: Page) -> None:
    notebook = Notebook(page, server, "llm.ipynb")
    notebook.open()
    notebook.show()
    notebook.device(0).get_by_role("button", name="History of GPU 0").click()
    expect(charts(page)).to_have_count(4, timeout=PATIENCE)
    titles = ["Memory", "Utilization", "Temperature", "Power"]
    expect(charts(page).locator("figcaption")).to_have_text(titles)
    page.get_by_role("button", name="1 h", exact=True).click()
    expect(legend(page, 0)).to_contain_text("debug.ipynb")
    for said in ("train.ipynb", "Others", "Granted", "Can be granted"):
        expect(legend(page, 0)).to_contain_text(said)
    for canvas in charts(page).locator("canvas").all():
        assert canvas.evaluate(FILLED), "something is drawn"

    # Values are told of each part where the pointer is, in all charts at once.
    area = charts(page).nth(0).locator(".u-over")
    box = area.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 40)
    row = legend(page, 0).locator("tr", has_text="debug.ipynb")
    expect(row.locator(".u-value")).to_have_text("5 GiB")
    expect(legend(page, 2).locator(".u-value").nth(1)).to_contain_text("°C")
    notebook.shoot("history-device", themes=("light", "dark"))

    # What happened is marked, and can be read without a pointer.
    page.get_by_text("5 events").click()
    events = page.locator(".jp-Genv-events li")
    expect(events.nth(0)).to_contain_text("debug.ipynb ended: Its kernel was shut down.")
    expect(events.nth(2)).to_contain_text("warned: idle: Idle for 30 min")
    expect(events.nth(4)).to_contain_text("train.ipynb attached")
    for beside in range(0, int(box["width"]), 4):
        page.mouse.move(box["x"] + beside, box["y"] + 40)
        if "train.ipynb attached" in page.locator(".jp-Genv-markText").inner_text():
            break
    else:
        raise AssertionError("no mark is told of where the pointer is")


def test_csv_and_png(server: Jupyter, page: Page) -> None:
    notebook = Notebook(page, server, "llm.ipynb")
    notebook.open()
    notebook.command("genv-jupyter:history", device=simulated_uuid(0))
    page.get_by_role("button", name="1 h", exact=True).click()
    expect(legend(page, 0)).to_contain_text("debug.ipynb", timeout=PATIENCE)
    with page.expect_download() as taken:
        page.get_by_role("button", name="Save CSV").click()
    assert taken.value.suggested_filename == "GPU 0 1h.csv"
    rows = list(csv.DictReader(io.StringIO(taken.value.path().read_text())))
    assert 355 <= len(rows) <= 362
    both = [row for row in rows if row["Memory: debug.ipynb (bytes)"]]
    assert 90 < len(both) < 110
    assert {int(row["Memory: debug.ipynb (bytes)"]) for row in both} == {5 * 2**30}
    assert any("debug.ipynb released: It was idle." in row["events"] for row in rows)
    with page.expect_download() as taken:
        page.get_by_role("button", name="Save PNG").click()
    picture = taken.value.path().read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert width > 300
    assert height > 4 * 180, "all charts are in it"


def test_an_environment_and_my_gpu_hours(server: Jupyter, page: Page) -> None:
    notebook = Notebook(page, server, "llm.ipynb")
    notebook.open()
    notebook.show()
    notebook.attach("½ GPU")
    notebook.expect_summary("GPU: ½")
    kernel = server.environment("llm.ipynb")["id"]
    notebook.command("genv-jupyter:history", environment=kernel)
    expect(charts(page).locator("figcaption").nth(0)).to_have_text(
        "Memory on GPU 0", timeout=2 * PATIENCE
    )
    expect(legend(page, 0)).to_contain_text("Cap")
    notebook.command("genv-jupyter:history")
    shown = page.locator(".jp-Genv-history:visible")
    expect(shown).to_contain_text("My GPU-hours")
    shown.get_by_role("button", name="1 h", exact=True).click()
    totals = page.locator(".jp-Genv-totals:visible")
    expect(totals.locator("tbody tr").nth(0)).to_contain_text("train.ipynb", timeout=PATIENCE)
    expect(totals.locator("tbody tr").nth(0)).to_contain_text("0.42")  # 50 min of a half
    expect(totals.locator("tbody tr").nth(1)).to_contain_text("0.07")
    expect(totals.locator("caption")).to_contain_text("GPU-hours: 0.4")
    notebook.shoot("history-mine", themes=("light", "dark"))

    # The tabs are there again after the page is.
    page.wait_for_timeout(1500)  # JupyterLab writes its state down a while later
    page.goto(server.page("llm.ipynb").removesuffix("&reset"))
    expect(page.get_by_role("tab", name="My GPU-hours history")).to_be_attached(
        timeout=2 * PATIENCE
    )
    expect(page.get_by_role("tab", name="llm.ipynb history")).to_be_attached()


def test_notebook_7_shows_it_below(server: Jupyter, page: Page) -> None:
    notebook = Notebook7(page, server, "llm.ipynb")
    notebook.open()
    notebook.show()
    notebook.device(0).get_by_role("button", name="History of GPU 0").click()
    expect(charts(page)).to_have_count(4, timeout=PATIENCE)
    notebook.shoot("history-notebook7")
    expect(charts(page).first.locator("canvas")).to_be_in_viewport(ratio=0.5)


def test_nothing_is_fetched_while_nobody_looks(server: Jupyter, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda call: asked.append(call.url) if "/usage" in call.url else None)
    notebook = Notebook(page, server, "llm.ipynb")
    notebook.open()
    page.clock.install()
    notebook.command("genv-jupyter:history", device=simulated_uuid(0))
    expect(charts(page)).to_have_count(4, timeout=PATIENCE)
    before = len(asked)
    page.clock.fast_forward(11_000)
    notebook.command("launcher:create")
    expect(page.locator(".jp-Genv-history")).not_to_be_visible()
    page.wait_for_timeout(500)
    seen = len(asked)
    assert seen > before, "it is kept up to date"
    page.clock.fast_forward(60_000)
    page.wait_for_timeout(500)
    assert len(asked) == seen
