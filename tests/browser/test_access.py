"""Every state of the panel, in both themes: for people without a mouse, or with other eyes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from genv_jupyter.events import Event
from genv_jupyter.leftovers import Leftover, LeftoverUse
from genv_jupyter.model import Device, QueueTicket, Request
from genv_jupyter.notices import Notice
from tests.browser.axe import unseen_focus, violations
from tests.browser.crowds import BEGAN, GIB, Crowd, Stream
from tests.browser.jupyter import Jupyter
from tests.browser.pages import PATIENCE, SCREENSHOTS, Notebook, Notebook7

EVENTS = "**/genv-jupyter/v1/events*"
HEALTH = "**/genv-jupyter/v1/health*"
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    with Jupyter(
        tmp_path_factory.mktemp("access"),
        {"GENV_JUPYTER_SIMULATE": "2x24GiB"},
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ) as server:
        for name in ("llm", "debug"):
            server.notebook(f"{name}.ipynb", "1")
        yield server


@pytest.fixture
def jupyter(server: Jupyter) -> Iterator[Jupyter]:
    yield server
    server.close_kernels()


def check(notebook: Notebook, name: str) -> None:
    """Look at the panel as it is, in both themes."""
    where = f"#{notebook.panel_id}"
    for theme in THEMES:
        notebook.theme(theme)
        assert violations(notebook.page, where) == [], (name, theme)
        notebook.shoot(f"access-{name}-{theme}")
    notebook.theme("light")
    assert unseen_focus(notebook.page, where) == [], name


def start(page: Page, jupyter: Jupyter) -> Notebook:
    """Open JupyterLab and the panel, whatever it shows."""
    notebook = Notebook(page, jupyter, "llm.ipynb")
    page.goto(jupyter.page("llm.ipynb"))
    page.locator(".jp-NotebookPanel-toolbar").wait_for(timeout=2 * PATIENCE)
    notebook.expect_idle()
    notebook.command("genv-jupyter:show")
    expect(notebook.panel).to_be_visible()
    return notebook


def test_what_a_user_does(jupyter: Jupyter, page: Page) -> None:
    notebook = start(page, jupyter)
    expect(notebook.notebook).to_contain_text("No GPU attached")
    check(notebook, "empty")
    kernel = jupyter.open_kernel("debug.ipynb")
    jupyter.gpu("PUT", f"environments/{kernel}", {"memory": "4G"})
    notebook.attach("½ GPU")
    notebook.expect_summary("GPU: ½")
    check(notebook, "attached")
    attach = notebook.fill_form(gpus="2")
    notebook.notebook.get_by_text("Duration, name, wait").click()
    expect(attach).to_be_disabled()
    check(notebook, "form")
    bars = notebook.panel.get_by_role("img")
    names = [bar.get_attribute("aria-label") or "" for bar in bars.all()]
    assert any("12 GiB" in name and "free: 8.3 GiB" in name for name in names), names


def _away(route: Route) -> None:
    route.abort()


def _forbidden(route: Route) -> None:
    said = {
        "code": "forbidden",
        "message": "You may not read gpu.",
        "hint": "Ask the owner of this server.",
        "details": {},
    }
    route.fulfill(status=403, body=json.dumps(said))


def _down(route: Route) -> None:
    said = {
        "code": "broker_down",
        "message": "The GPU broker cannot be reached.",
        "hint": "`jupyter gpu doctor` says more.",
        "details": {},
    }
    route.fulfill(status=503, body=json.dumps(said))


@pytest.mark.parametrize(
    ("name", "answer", "text"),
    [
        ("disconnected", _away, "The Jupyter server does not answer"),
        ("forbidden", _forbidden, "No permission"),
        ("down", _down, "GPUs cannot be shared at present"),
    ],
)
def test_without_a_way_to_the_broker(
    jupyter: Jupyter, page: Page, name: str, answer: Callable[[Route], None], text: str
) -> None:
    page.route(HEALTH, answer)
    notebook = start(page, jupyter)
    expect(notebook.panel).to_contain_text(text)
    check(notebook, name)


def test_while_it_loads(jupyter: Jupyter, page: Page) -> None:
    def silent(socket: WebSocketRoute) -> None:
        """It is open, and says nothing."""

    page.route_web_socket(EVENTS, silent)
    notebook = start(page, jupyter)
    expect(notebook.panel.get_by_role("status")).to_contain_text("Loading")
    check(notebook, "loading")


def changed(device: Device, **changes: Any) -> Device:
    return msgspec.structs.replace(device, **changes)


def test_everything_at_once(jupyter: Jupyter, page: Page) -> None:
    """All that can be told: MIG, devices in trouble, outsiders, a queue, leftovers, notices."""
    crowd = Crowd(6, 14)
    crowd.viewer = jupyter.gpu("GET", "health")["user"]
    assert crowd.viewer
    stream = Stream(page, crowd)
    notebook = start(page, jupyter)
    expect(notebook.device(0)).to_be_visible()
    kernel = jupyter.environment("llm.ipynb")
    devices = list(crowd.snapshot().devices)
    mig = {"kind": "mig", "parent": "GPU-0123456789", "name": "NVIDIA H100 MIG 1g.10gb"}
    stream.tell(
        Event(
            revision=99,
            devices=(
                changed(devices[0], external_memory=6 * GIB, unattributed_memory=2 * GIB),
                changed(devices[1], health="lost", trouble="GPU 1 is lost: `Xid 79`."),
                changed(devices[2], health="unreliable", memory_usable=None),
                changed(devices[3], **mig, index=0),
                changed(devices[4], **mig, index=1, utilization=None),
            ),
            environments=(
                msgspec.convert(
                    {**kernel, "pending": {"gpus": 1}, "expires": "2026-01-02T08:00:00Z"},
                    type=type(crowd.snapshot().environments[0]),
                ),
            ),
            queue=tuple(
                QueueTicket(
                    id=f"t{place}",
                    environment=kernel["id"] if place == 2 else "1",
                    user="user-9",
                    name="experiment.ipynb",
                    request=Request(gpus=1),
                    state="waiting",
                    position=place,
                    since=BEGAN,
                    until=None,
                    held=(),
                    expected=BEGAN + timedelta(days=9),
                    guess=place == 2,
                    message=f"Number {place} in the queue.",
                )
                for place in (1, 2)
            ),
            leftovers=(
                Leftover(
                    pid=4711,
                    start=1,
                    command="python",
                    environment="gone",
                    name="old.ipynb",
                    user="user-9",
                    after="ended",
                    uses=(LeftoverUse(device=devices[0].uuid, memory=2 * GIB),),
                    started=BEGAN,
                    left=BEGAN,
                    until=None,
                    state="running",
                ),
            ),
            notices=(
                Notice(
                    id="n2",
                    environment="1",
                    user="user-2",
                    kind="cap",
                    level="error",
                    message="12 GiB are used of 10 GiB.",
                    hint="",
                    since=BEGAN,
                    until=None,
                    actions=("dismiss",),
                ),
                Notice(
                    id="n1",
                    environment=kernel["id"],
                    user=kernel["user"],
                    kind="idle",
                    level="warning",
                    message="Idle for 55 minutes: the kernel is restarted at 12:00.",
                    hint="Keep it if it is needed.",
                    since=BEGAN,
                    until=BEGAN,
                    actions=("keep", "release"),
                ),
            ),
        )
    )
    for text in ("2 MIG instances", "Number 2 in the queue", "End", "Keep", "GPU 1 is lost"):
        expect(notebook.panel.get_by_text(text).first).to_be_attached()
    # An administrator sees what others are told, and is not told it in a corner.
    others = notebook.panel.get_by_role("region", name="Told to others")
    expect(others.get_by_role("listitem")).to_contain_text("12 GiB are used of 10 GiB.")
    expect(page.locator(".Toastify__toast").filter(has_text="Idle for 55")).to_be_visible()
    expect(page.locator(".Toastify__toast").filter(has_text="12 GiB are used")).to_have_count(0)
    check(notebook, "everything")
    notebook.panel.evaluate("node => node.scrollTo(0, node.scrollHeight)")
    notebook.shoot("access-everything-below", themes=THEMES)
    notebook.panel.evaluate("node => node.scrollTo(0, 0)")
    seen_by_others(notebook)
    narrowest = "() => document.body.style.setProperty('--jp-sidebar-min-width', '150px')"
    page.evaluate(narrowest)  # JupyterLab's own is 250 px
    for _ in range(2):
        notebook.command("application:toggle-right-area")
    notebook.resize(200)
    notebook.shoot("access-everything-narrow", themes=("light",))
    box = notebook.panel.bounding_box()
    assert box is not None
    assert 190 <= box["width"] <= 210
    assert_whole(notebook)


def assert_whole(notebook: Notebook) -> None:
    inside, outside = notebook.panel.evaluate("node => [node.scrollWidth, node.clientWidth]")
    assert inside <= outside, "nothing is cut off"


def seen_by_others(notebook: Notebook) -> None:
    """From right to left; and where the system forces its colours, light and dark."""
    panel, page = notebook.panel, notebook.page
    panel.evaluate("node => void (node.dir = 'rtl')")
    notebook.shoot("access-rtl", themes=("light",))
    assert_whole(notebook)
    dot, name, amount = (
        panel.locator(f".jp-Genv-row .jp-Genv-{part}").first.evaluate(
            "node => node.getBoundingClientRect().left"
        )
        for part in ("dot", "holderName", "amount")
    )
    assert dot > name > amount, "the order of a row is the other way round"
    panel.evaluate("node => node.removeAttribute('dir')")
    for scheme in ("light", "dark"):
        page.emulate_media(forced_colors="active", color_scheme=scheme)
        page.screenshot(path=SCREENSHOTS / f"access-forced-{scheme}.png")
        kinds = ("mine", "other", "external", "unattributed")
        looks = {
            panel.locator(f".jp-Genv-bar .jp-mod-{kind}").first.evaluate(
                "node => [getComputedStyle(node).backgroundColor,"
                " getComputedStyle(node).backgroundImage].join()"
            )
            for kind in kinds[1:]
        }
        canvas = panel.evaluate("node => getComputedStyle(node).backgroundColor")
        assert len(looks) == len(kinds[1:]), "who is who shows in the bars"
        assert not [look for look in looks if look == f"{canvas},none"]
    page.emulate_media(forced_colors="none", color_scheme="light")


def test_magnified_four_times(jupyter: Jupyter, page: Page) -> None:
    """A window of 1280 x 1024 at 400 % has room for 320 x 256."""
    notebook = Notebook7(page, jupyter, "llm.ipynb")
    notebook.open()
    notebook.command("genv-jupyter:show")
    notebook.attach("½ GPU")
    expect(notebook.panel).to_contain_text("50 %, 12 GiB")
    page.set_viewport_size({"width": 320, "height": 256})
    notebook.panel.get_by_role("button", name="Other…").click()
    expect(notebook.panel.get_by_role("slider")).to_be_attached()
    notebook.shoot("access-magnified")
    box = notebook.panel.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 320
    assert_whole(notebook)
    attach = notebook.panel.get_by_role("button", name="Attach", exact=True)
    attach.scroll_into_view_if_needed()
    expect(attach).to_be_in_viewport()
    page.set_viewport_size({"width": 1280, "height": 800})
