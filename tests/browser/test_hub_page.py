"""The GPU page of a Hub in a browser: administrators act, others see their own, nobody gets in."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from genv_jupyter.leftovers import Leftover, LeftoverUse
from genv_jupyter.model import QueueTicket, Request
from tests.browser.axe import unseen_focus, violations
from tests.browser.crowds import BEGAN, GIB, Crowd
from tests.browser.pages import PATIENCE, SCREENSHOTS
from tests.hub.gpu_page import holding, page_of_hub
from tests.hub.hubs import Hub, until
from tests.integration.daemons import Daemon

Site = tuple[Hub, Daemon]
HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>.ipynb'
PHONE = {"width": 375, "height": 740}
WIDE = {"width": 1280, "height": 800}
TABS = ("now", "users", "history", "quotas", "audit")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    lines = ("c.HubAccess.cache_seconds = 1", "c.QuotaSettings.default = {'devices': 2}")
    with page_of_hub(*lines) as made:
        yield made


class GpuPage:
    """The page, open in a browser of somebody who has logged in."""

    def __init__(self, browser: Browser, hub: Hub, user: str) -> None:
        self.hub = hub
        self.url = f"{hub.url}/services/gpu/"
        self.context = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
        self.context.set_default_timeout(PATIENCE)
        self.errors: list[str] = []
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)
        self.page.goto(self.url)
        self.page.fill("input[name=username]", hub.names[user])
        self.page.click("#login_submit")
        expect(self.page.get_by_role("region", name="Devices")).to_be_visible(timeout=PATIENCE)
        expect(self.page.locator("header").get_by_text(user, exact=True)).to_be_visible()

    def _heard(self, message: object) -> None:
        text = str(getattr(message, "text", ""))
        if "Content Security Policy" in text:
            self.errors.append(text)

    def tab(self, name: str) -> Page:
        self.page.locator("nav").get_by_role("link", name=name, exact=True).click()
        return self.page

    def region(self, name: str) -> Locator:
        return self.page.get_by_role("region", name=name, exact=True)

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")


@contextlib.contextmanager
def visiting(browser: Browser, hub: Hub, user: str) -> Iterator[GpuPage]:
    """Somebody's browser, in which nothing goes wrong."""
    made = GpuPage(browser, hub, user)
    try:
        yield made
        assert made.errors == []
    finally:
        made.context.close()


# -- administrators -----------------------------------------------------------------------------


def test_an_administrator_sets_a_quota_for_somebody(browser: Browser, site: Site) -> None:
    hub, daemon = site
    with (
        holding(hub, daemon, "bob", "b.ipynb", fraction=0.5) as holder,
        visiting(browser, hub, "adm") as it,
    ):
        page = it.tab("Users")
        row = it.region("Users").get_by_role("row").filter(has_text="bob")
        expect(row).to_contain_text("GPUs: 0.5 of 2")
        row.get_by_role("link").click()
        form = page.get_by_role("group", name="Set a quota")
        expect(form.get_by_role("textbox", name="User")).to_have_value("bob")
        form.get_by_label("Memory").fill("lots")
        form.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("lots")
        form.get_by_label("Memory").fill("4G")
        form.get_by_label("GPUs", exact=True).fill("none")
        form.get_by_role("button", name="Save").click()
        expect(page.get_by_text("The rule of user:bob is set.")).to_be_visible()
        rule = it.region("Quotas").get_by_role("row").filter(has_text="user:bob")
        expect(rule).to_contain_text("GPUs none, Memory 4G")
        found = {one["quantity"]: one for one in holder.call("GET", "quota")["quantities"]}
        assert found["memory"]["limit"] == 4 * 10**9 and found["devices"]["limit"] is None
        rule.get_by_role("button", name="Forget").click()
        it.dialog.get_by_role("button", name="Forget it").click()
        expect(rule).to_have_count(0)


def test_an_administrator_releases_what_somebody_holds(browser: Browser, site: Site) -> None:
    hub, daemon = site
    with (
        visiting(browser, hub, "adm") as it,
        holding(hub, daemon, "bob", "b.ipynb", fraction=0.5) as holder,
    ):
        rows = it.region("Environments")
        row = rows.get_by_role("listitem").filter(has_text="b.ipynb")
        expect(row).to_contain_text("bob")  # it has come by itself
        row.hover()
        button = row.get_by_role("button", name="Release what b.ipynb has")
        button.click()
        expect(it.dialog).to_contain_text("b.ipynb of bob loses its GPUs")
        it.page.keyboard.press("Escape")
        expect(it.dialog).to_have_count(0)
        assert holder.now["grants"]
        row.hover()
        button.click()
        it.dialog.get_by_role("button", name="Release").click()
        until(lambda: holder.now["state"] in ("released", "draining"), "the release")
        expect(button).to_have_count(0)


def test_an_administrator_drains_a_device_and_puts_it_back(browser: Browser, site: Site) -> None:
    hub, daemon = site
    with (
        holding(hub, daemon, "ann", "stays.ipynb", gpus=1) as holder,
        holding(hub, daemon, "bob", "late.ipynb") as other,
        visiting(browser, hub, "adm") as it,
    ):
        number = next(one["index"] for one in holder.call("GET", "devices") if not one["grants"])
        it.page.get_by_role("button", name=f"Drain GPU {number}").click()
        it.dialog.get_by_label("Reason").fill(HOSTILE)
        it.dialog.get_by_role("button", name="Drain", exact=True).click()
        device = it.region("Devices").locator(".jp-Genv-device").nth(number)
        expect(device).to_contain_text(f"by adm: {HOSTILE}")
        expect(device).to_contain_text("under maintenance")
        with pytest.raises(AssertionError, match="under maintenance since"):
            other.attach(fraction=0.5)
        it.page.get_by_role("button", name=f"Put GPU {number} back").click()
        expect(device).to_contain_text("24 GiB free")
        assert other.attach(fraction=0.5)["grants"]
        assert holder.now["grants"]
        it.tab("Audit")
        it.page.get_by_label("Search the audit log").fill("devices/")
        rows = it.region("Audit log").get_by_role("row")
        expect(rows.nth(1)).to_contain_text("PATCH devices/")
        expect(rows.nth(1)).to_contain_text("adm")
        it.page.get_by_label("Search the audit log").fill("nothing is called that")
        expect(it.page.get_by_text("Nothing with")).to_be_visible()
        assert it.page.evaluate("window.pwned") is None


# -- everybody else -----------------------------------------------------------------------------


def test_others_see_their_own(browser: Browser, site: Site) -> None:
    hub, daemon = site
    with (
        holding(hub, daemon, "bob", "secret.ipynb", fraction=0.5),
        holding(hub, daemon, "ann", "mine.ipynb", memory="1G") as mine,
        visiting(browser, hub, "ann") as it,
    ):
        links = it.page.locator("nav").get_by_role("link")
        expect(links).to_have_text(["Now", "History"])
        expect(it.region("Environments")).to_contain_text("mine.ipynb")
        expect(it.region("My quota")).to_contain_text("of 2")
        expect(it.page.locator("main")).not_to_contain_text("secret.ipynb")
        expect(it.page.get_by_role("button", name=re.compile("Drain"))).to_have_count(0)
        expect(it.page.get_by_role("button", name=re.compile("Release what"))).to_have_count(1)
        it.page.goto(f"{it.url}#quotas")
        expect(it.region("Devices")).to_be_visible()
        expect(it.region("Quotas")).to_have_count(0)
        it.page.goto(f"{it.url}#now")
        it.region("Environments").get_by_role("listitem").filter(has_text="mine").hover()
        it.page.get_by_role("button", name="Release what mine.ipynb has").click()
        it.dialog.get_by_role("button", name="Release").click()
        until(lambda: not mine.now["grants"] or mine.now["state"] == "draining", "the release")


def test_names_are_text(browser: Browser, site: Site) -> None:
    hub, daemon = site
    with (
        holding(hub, daemon, "bob", HOSTILE, fraction=0.5),
        visiting(browser, hub, "adm") as it,
    ):
        expect(it.region("Environments")).to_contain_text(HOSTILE)
        expect(it.region("Devices")).to_contain_text(HOSTILE)
        for name in TABS:
            it.tab(name.capitalize())
            expect(it.page.locator("main [aria-busy=true]")).to_have_count(0)
        assert it.page.evaluate("window.pwned") is None
        assert it.page.locator("main img").count() == 0


# -- whom it keeps out --------------------------------------------------------------------------

_FORGE = """async url => {
  const token = /_xsrf=([^;]*)/.exec(document.cookie)?.[1] ?? '';
  const call = (method, path, headers) => fetch(`${url}genv-jupyter/v1/${path}`, {
    method, headers, credentials: 'include',
    body: method === 'GET' ? undefined : '{"maintenance": true}'
  }).then(answer => answer.status, () => 'unreadable');
  return [
    await call('PATCH', 'devices/0', {}),
    await call('PATCH', 'devices/0', {'X-XSRFToken': token}),
    await call('GET', 'environments', {}),
    await call('POST', 'placements', {'Content-Type': 'text/plain'}),
  ];
}"""


@contextlib.contextmanager
def elsewhere() -> Iterator[str]:
    """A web server of somebody else's."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_pages_of_others_get_nothing_done(browser: Browser, site: Site) -> None:
    hub, _ = site
    with visiting(browser, hub, "adm") as it, elsewhere() as url:
        # Of the Hub's own origin, as users' servers are: they have the visitor's cookies sent.
        other = it.context.new_page()
        other.goto(f"{hub.url}/hub/home")
        assert other.evaluate(_FORGE, it.url) == [403, 403, 403, 403]
        # It can neither frame the page nor keep hold of its window.
        other.evaluate(
            "url => { const it = document.createElement('iframe'); it.src = url;"
            " it.id = 'frame'; document.body.append(it); }",
            it.url,
        )
        refused = "() => document.querySelector('#frame').contentDocument === null"
        other.wait_for_function(refused)
        reached = "it => { try { return it.document.cookie } catch { return null } }"
        for opener in (other, it.page):  # one with the same policy, too
            with it.context.expect_page() as opened:
                held = opener.evaluate_handle("url => window.open(url)", it.url)
            expect(opened.value.get_by_role("region", name="Devices")).to_be_visible()
            assert "_xsrf" in opened.value.evaluate("document.cookie")
            assert "_xsrf=" not in (opener.evaluate(reached, held) or "")
        # Of another origin of the same site: the browser sends the cookies, and says so.
        other.goto(url)
        assert set(other.evaluate(_FORGE, it.url)) == {"unreadable"}
        expect(it.region("Devices")).to_contain_text("24 GiB free")
        expect(it.region("Devices")).not_to_contain_text("under maintenance")


def test_no_other_script_runs_in_it(browser: Browser, site: Site) -> None:
    with visiting(browser, site[0], "adm") as it:
        it.page.evaluate(
            """() => {
              const inline = document.createElement('script');
              inline.textContent = 'window.pwned = 1';
              const foreign = document.createElement('script');
              foreign.src = '/hub/static/components/requirejs/require.js';
              document.head.append(inline, foreign);
              document.body.setAttribute('onclick', 'window.pwned = 2');
            }"""
        )
        it.page.locator("h1").click()
        it.page.wait_for_function("() => performance.getEntriesByType('resource').length > 3")
        assert it.page.evaluate("[window.pwned, typeof window.require]") == [None, "undefined"]
        assert len(it.errors) >= 3, "the browser says what it has refused"
        it.errors.clear()


# -- what it looks like, and when something is gone ----------------------------------------------


_BEYOND = """() => [document.documentElement, document.querySelector('main')].some(
  it => it.scrollWidth > it.clientWidth
)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_tab_fits_and_can_be_used_by_everybody(
    browser: Browser, site: Site, scheme: str
) -> None:
    hub, daemon = site
    with (
        holding(hub, daemon, "ann", "training-of-a-large-model.ipynb", gpus=1),
        holding(hub, daemon, "bob", "eval.ipynb", fraction=0.5),
        visiting(browser, hub, "adm") as it,
    ):
        page = it.page
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for name in TABS:
            page.set_viewport_size(WIDE)  # type: ignore[arg-type]
            it.tab(name.capitalize())
            expect(page.locator("main [aria-busy=true]")).to_have_count(0)
            expect(page.locator("main .jp-Genv-loading")).to_have_count(0)
            for kind, size in (("wide", WIDE), ("phone", PHONE)):
                page.set_viewport_size(size)  # type: ignore[arg-type]
                page.screenshot(path=SCREENSHOTS / f"hub-{name}-{kind}-{scheme}.png")
                assert violations(page, "body") == [], (name, kind)
                assert not page.evaluate(_BEYOND), (name, kind)
            assert unseen_focus(page, "body") == [], name


_TOLD_BY_HAND = """line => {
  const real = window.fetch;
  window.fetch = (url, init) => String(url).endsWith('/events')
    ? Promise.resolve(new Response(new ReadableStream({
        start: stream => {
          stream.enqueue(new TextEncoder().encode(line + '\\n'));
          init.signal.addEventListener('abort', () => stream.error(new Error('over')));
        }
      })))
    : real(url, init);
}"""


def test_everything_at_once(browser: Browser, site: Site) -> None:
    """Very many devices and environments, leftovers, a queue: told by hand, all else is real."""
    crowd = Crowd(16, 300)
    crowd.change(300)
    whole = crowd.snapshot()
    leftover = Leftover(
        pid=4711,
        start=1,
        command="python <b>train</b>.py",
        environment="gone",
        name="old.ipynb",
        user="user-9",
        after="ended",
        uses=(LeftoverUse(device=whole.devices[0].uuid, memory=2 * GIB),),
        started=BEGAN,
        left=BEGAN,
        until=None,
        state="running",
    )
    ticket = QueueTicket(
        id="t1",
        environment="1",
        user="user-9",
        name="experiment.ipynb",
        request=Request(gpus=1),
        state="waiting",
        position=1,
        since=BEGAN,
        until=None,
        held=(),
        expected=None,
        guess=None,
        message="First in the queue.",
    )
    whole = msgspec.structs.replace(whole, leftovers=(leftover,), queue=(ticket,))
    line = msgspec.json.encode(whole).decode()
    with visiting(browser, site[0], "adm") as it:
        page = it.page
        page.add_init_script(f"({_TOLD_BY_HAND})({json.dumps(line)})")
        page.reload()
        expect(it.region("Environments")).to_contain_text("experiment-0001.ipynb")
        expect(it.region("Queue")).to_contain_text("experiment.ipynb")
        rows = it.region("Environments").get_by_role("listitem")
        assert rows.count() < 100, "of a long list what is seen is in the document"
        for kind, size in (("wide", WIDE), ("phone", PHONE)):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            page.screenshot(path=SCREENSHOTS / f"hub-full-{kind}.png")
            assert violations(page, "body") == []
            assert not page.evaluate(_BEYOND)
        page.get_by_label("Filter environments").fill("experiment-0299")
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="End process 4711").click()
        expect(it.dialog).to_contain_text("python <b>train</b>.py of user-9")
        with page.expect_request("**/processes/4711-1") as asked:
            it.dialog.get_by_role("button", name="End it").click()
        assert asked.value.method == "DELETE"
        expect(it.region("Leftovers").get_by_role("alert")).to_be_visible()


def test_a_daemon_that_goes_and_comes_is_said(browser: Browser, site: Site) -> None:
    hub, daemon = site
    with visiting(browser, hub, "adm") as it:
        daemon.stop()
        try:
            told = it.page.get_by_text("The GPU daemon of this host does not answer.")
            expect(told).to_be_visible(timeout=PATIENCE)
            expect(it.page.get_by_text("What is shown may be out of date.")).to_be_visible()
            it.page.reload()
            expect(told).to_be_visible()
            expect(it.page.get_by_role("link", name="Log out")).to_be_visible()
        finally:
            daemon.start()
        it.page.get_by_role("button", name="Try again").click()
        expect(it.region("Devices")).to_be_visible(timeout=PATIENCE)
        expect(it.page.locator("nav").get_by_role("link", name="Audit")).to_be_visible()


def test_logging_out_ends_what_is_open(browser: Browser, site: Site) -> None:
    with visiting(browser, site[0], "cat") as it:
        other = it.context.new_page()
        other.goto(it.url)
        other.get_by_role("link", name="Log out").click()
        expect(it.page.get_by_text("You are logged out")).to_be_visible(timeout=PATIENCE)
        it.page.get_by_role("button", name="Log in again").click()
        expect(it.page.locator("input[name=username]")).to_be_visible()
