"""The sidebar of a host with 256 devices and 2,000 environments, in a real browser.

JupyterLab and its server are real; the messages of the event stream are made here, so that the
page is measured and not the broker. Measured are:

- the *first paint*: from the command that opens the panel to the frame that shows its rows, on a
  page that has just been loaded;
- the *script time* of a message that changes 50 environments and their devices, in processor time
  as Chromium counts it (Playwright's stand-in for the socket included), and that of style and
  layout beside it: with the panel at its top, and with the environments in sight, sorted by what
  they use;
- the *memory*: the heap after a collection, once a minute, while such a message comes each second;
- how many elements the panel has, whatever it is scrolled to.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the server and the page are the tests' parts

from figures import RESULTS, keep, print_table, quantile
from playwright.sync_api import CDPSession, Page, sync_playwright

from tests.browser.conftest import FLAGS
from tests.browser.crowds import Crowd, Stream
from tests.browser.jupyter import Jupyter

DEVICES, ENVIRONMENTS, ROWS = 256, 2000, 50
PANEL = "#genv-jupyter-panel"
OPEN = """async () => {
  const begin = performance.now();
  void window.jupyterapp.commands.execute('genv-jupyter:show');
  const frame = () => new Promise(done => requestAnimationFrame(done));
  while (!document.querySelector('#genv-jupyter-panel .jp-Genv-device')) await frame();
  await frame();  // what was drawn in the frame before is on the screen now
  return performance.now() - begin;
}"""
FRAMES = """() => new Promise(done =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"""


def load(page: Page, jupyter: Jupyter) -> None:
    """Open JupyterLab, and wait until it is at rest."""
    page.goto(jupyter.page("notes.ipynb"))
    page.locator(".jp-NotebookPanel-toolbar").wait_for()
    page.wait_for_function("() => window.jupyterapp.commands.hasCommand('genv-jupyter:show')")
    page.wait_for_timeout(3000)


def first_paints(page: Page, jupyter: Jupyter, rounds: int) -> list[float]:
    """Return the milliseconds of first paints, each on a page of its own."""
    paints = []
    for _ in range(rounds):
        load(page, jupyter)
        paints.append(page.evaluate(OPEN))
    return paints


def metrics(cdp: CDPSession) -> dict[str, float]:
    """Return what Chromium counts, seconds and bytes."""
    told = cdp.send("Performance.getMetrics")["metrics"]
    return {one["name"]: one["value"] for one in told}


def updates(page: Page, cdp: CDPSession, stream: Stream, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of scripts, and of style and layout, of each message."""
    spent: dict[str, list[float]] = {"script": [], "layout": []}
    for _ in range(rounds):
        message = stream.crowd.change(ROWS)
        page.evaluate(FRAMES)
        before = metrics(cdp)
        stream.tell(message)
        page.evaluate(FRAMES)
        after = metrics(cdp)
        change = {name: 1000 * (after[name] - before[name]) for name in after}
        spent["script"].append(change["ScriptDuration"])
        spent["layout"].append(change["LayoutDuration"] + change["RecalcStyleDuration"])
    return spent


def scroll_to_environments(page: Page) -> None:
    """Have the list of environments in sight, in the order that changes most."""
    section = page.locator(PANEL).get_by_role("region", name="Environments")
    page.locator(PANEL).evaluate("node => node.scrollTo(0, node.scrollHeight / 2)")
    page.locator(PANEL).evaluate("node => node.querySelector('.jp-Genv-tools').scrollIntoView()")
    section.get_by_label("Sort").select_option("used")
    page.evaluate(FRAMES)


def memory(page: Page, cdp: CDPSession, stream: Stream, minutes: float) -> list[dict[str, float]]:
    """Send a message a second; return heap, nodes and listeners after a collection, each minute."""
    seen = []
    begin = time.monotonic()
    second = 0
    while second <= 60 * minutes:
        if second % 60 == 0:
            page.evaluate(FRAMES)
            for _ in range(3):
                cdp.send("HeapProfiler.collectGarbage")
            now = metrics(cdp)
            seen.append(
                {
                    "minute": second // 60,
                    "heap_mib": round(now["JSHeapUsedSize"] / 2**20, 2),
                    "nodes": now["Nodes"],
                    "listeners": now["JSEventListeners"],
                }
            )
        stream.tell(stream.crowd.change(ROWS))
        second += 1
        page.wait_for_timeout(max(0.0, 1000 * (begin + second - time.monotonic())))
    return seen


def run(paints: int, rounds: int, minutes: float) -> dict[str, Any]:
    """Measure everything; return the figures."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Jupyter(Path(directory), {"GENV_JUPYTER_SIMULATE": "1x24GiB"}) as jupyter,
        sync_playwright() as playwright,
    ):
        jupyter.notebook("notes.ipynb", "1")
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=[*FLAGS, "--enable-precise-memory-info"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        stream = Stream(page, Crowd(DEVICES, ENVIRONMENTS))
        first = first_paints(page, jupyter, paints)
        cdp = page.context.new_cdp_session(page)
        cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
        updates(page, cdp, stream, 10)  # what is compiled first is not what a user waits for
        at_top = updates(page, cdp, stream, rounds)
        elements = page.locator(f"{PANEL} *").count()
        scroll_to_environments(page)
        updates(page, cdp, stream, 10)
        in_list = updates(page, cdp, stream, rounds)
        scrolled = page.locator(f"{PANEL} *").count()
        heap = memory(page, cdp, stream, minutes)
        browser.close()
        jupyter.close_kernels()
    return {
        "devices": DEVICES,
        "environments": ENVIRONMENTS,
        "rows": ROWS,
        "first_paint_ms": [round(one, 1) for one in first],
        "top": {name: summary(values) for name, values in at_top.items()},
        "list": {name: summary(values) for name, values in in_list.items()},
        "elements": {"top": elements, "list": scrolled},
        "memory": heap,
    }


def summary(values: list[float]) -> dict[str, float]:
    """Return the quantiles that count."""
    return {
        "median_ms": round(quantile(values, 0.5), 2),
        "p95_ms": round(quantile(values, 0.95), 2),
        "n": len(values),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paints", type=int, default=5, help="pages that are loaded")
    parser.add_argument("--rounds", type=int, default=100, help="messages of each kind")
    parser.add_argument("--minutes", type=float, default=10, help="of messages at 1 Hz")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    arguments = parser.parse_args()
    found = run(arguments.paints, arguments.rounds, arguments.minutes)
    print(f"{DEVICES} devices, {ENVIRONMENTS} environments")
    print("first paint (ms):", *found["first_paint_ms"])
    print_table(
        ("message of 50 rows", "script p50", "p95", "layout p50", "p95", "elements"),
        [
            (
                where,
                *(
                    f"{found[where][kind][part]:.1f}"
                    for kind in ("script", "layout")
                    for part in ("median_ms", "p95_ms")
                ),
                str(found["elements"][where]),
            )
            for where in ("top", "list")
        ],
    )
    print_table(
        ("minute", "heap MiB", "nodes", "listeners"),
        [
            tuple(f"{one[name]:g}" for name in ("minute", "heap_mib", "nodes", "listeners"))
            for one in found["memory"]
        ],
    )
    print(f"written to {keep('sidebar', found, arguments.results)}")


if __name__ == "__main__":
    main()
