"""One browser for this suite, ended with it: its event loop would disturb other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def jp_asyncio_loop() -> None:
    """Replaces pytest-jupyter's, which every test gets: no second loop beside Playwright's."""


@pytest.fixture
def jp_server_cleanup() -> None:
    """Replaces pytest-jupyter's, which needs that loop."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Shared by the tests of a file: the second page comes from the browser's cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page; an exception in our scripts fails the test (Notebook 7 has some of its own)."""
    errors: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(f"{error}\n{error.stack or ''}"))
    yield page
    page.close()
    # A restart breaks off requests of JupyterLab's own, whoever has asked for it.
    ours = [error for error in errors if not error.startswith("Canceled future")]
    assert not [error for error in ours if "/genv-jupyter/" in error]
