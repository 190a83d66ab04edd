"""A dashboard on a port, and a real browser that looks at it: Debian's Chromium, without a window.

Where there is no Chromium or no playwright the tests of this folder are not collected, and the header of the
run says so; `.ci/run` installs Chromium. Each page is watched: an error in its console, a violation of its
policy, or a request to another host fails the test.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from harness.browsing import open_context
from harness.shop import Shop, serving
from harness.watch import Watch

from eventbus.dashboard import timeouts

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HAS_BROWSER = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None

if not HAS_BROWSER:
    collect_ignore_glob = ["test_*.py"]

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_VIOLATIONS = """
document.addEventListener(
    "securitypolicyviolation",
    (event) => console.error(`${location} violates its policy: ${event.violatedDirective}`),
);
"""


def pytest_report_header() -> list[str]:
    return (
        []
        if HAS_BROWSER
        else ["no chromium or no playwright: the tests of the dashboard in a browser are not collected"]
    )


Open = Callable[..., Awaitable["Page"]]


@pytest.fixture(autouse=True)
def patient_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dashboard of this process wait two minutes for its server: a busy machine is no server that is
    away.
    """
    for name in ("READ", "SHARED_READ", "SEARCH", "MANY", "REQUEST"):
        monkeypatch.setattr(timeouts, name, 120.0)


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """A shop with a worker, and its dashboard."""
    shop = Shop()
    async with shop.provider, shop.provider.worker(), serving(shop):
        yield shop


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A browser for this test."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=list(_OPTIONS))
        yield browser
        await browser.close()


@pytest.fixture
async def watch(shop: Shop) -> AsyncIterator[Watch]:
    """Fails the test for what a page did wrong."""
    watch = Watch(shop.url)
    yield watch
    assert watch.wrong == []


@pytest.fixture
async def open_page(shop: Shop, browser: Browser, watch: Watch) -> AsyncIterator[Open]:
    """Open a page of the dashboard in a context of its own, signed in by a link."""
    contexts: list[BrowserContext] = []

    async def open_page(path: str = "/", *, is_signed_in: bool = True, **options: Any) -> Page:
        context = await open_context(browser, base_url=shop.url, **options)
        contexts.append(context)
        if options.get("java_script_enabled", True):
            await context.add_init_script(_VIOLATIONS)
        page = await context.new_page()
        watch.follow(page)
        if is_signed_in:
            await page.goto(f"/sign-in?code={shop.dashboard.make_code()}")
        await page.goto(path)
        return page

    yield open_page
    for context in contexts:
        await context.close()
