"""The dashboard of a program of its own, in a real browser: that program ends, or its server does. Checks 15
and 16.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
from harness.backends import Backend, free_port
from harness.browsing import open_context
from harness.programs import Program
from harness.shop import TOKEN, Shop
from harness.watch import Watch

from eventbus import EventProvider

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.servers("one")


class Site:
    """The program with the dashboard, on one port."""

    def __init__(self, run: Callable[..., Program], url: str) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}/ops"
        self._run = run
        self._url = url
        self.program = self.start()

    def start(self) -> Program:
        """Start it, again on its port."""
        self.program = self._run(str(self.port), url=self._url, module="apps.pages.dashboard_app")
        return self.program

    def stop(self) -> None:
        """End it by SIGTERM."""
        self.program.send(signal.SIGTERM)
        self.program.wait_ended()


async def _sign_in(browser: Browser, site: Site) -> Page:
    context = await open_context(browser)
    page = await context.new_page()
    for _ in range(600):
        try:
            await page.goto(f"{site.base}/sign-in")
            break
        except Exception:  # noqa: BLE001  (it does not listen yet)
            await page.wait_for_timeout(100)
    await page.fill("input[name=token]", TOKEN)
    await page.press("input[name=token]", "Enter")
    await page.wait_for_selector("h1:has-text('Queues')")
    return page


async def _emit(provider: EventProvider, count: int) -> list[str]:
    jobs = [provider.emit("paid", n, reply=False) for n in range(count)]
    for job in jobs:
        await job.enqueued()
    return [job.job_id for job in jobs]


async def _rows(page: Page) -> list[str]:
    """Return the jobs that the tail shows, the oldest first."""
    found = await page.locator("#tail tbody tr td:nth-child(4)").all_inner_texts()
    return [each for each in reversed(found) if each]


async def _wait_rows(page: Page, count: int) -> None:
    wanted = "(count) => document.querySelectorAll('#tail tbody tr.change td:nth-child(4) a').length >= count"
    await page.wait_for_function(wanted, arg=count)


async def _wait_told(page: Page) -> None:
    """Wait until the tail tells each change as it happens."""
    await page.wait_for_selector("#tail-state:has-text('as it happens')")


@pytest.fixture
async def provider(server: Backend) -> AsyncIterator[EventProvider]:
    """Another program, which emits."""
    async with EventProvider(server.url) as provider:
        yield provider


async def test_check_15_eight_tabs_load_a_sigterm_ends_the_host_and_the_tail_goes_on_without_a_gap(
    run: Callable[..., Program], server: Backend, provider: EventProvider, browser: Browser
) -> None:
    site = Site(run, server.url)
    tail = await _sign_in(browser, site)
    await tail.goto(f"{site.base}/tail")
    await _wait_told(tail)
    tabs = [await tail.context.new_page() for _ in range(7)]
    for tab in tabs:
        await tab.goto(f"{site.base}/schedules")
        assert await tab.title() == "Schedules · eventbus"
    await tail.bring_to_front()
    sent = await _emit(provider, 20)
    await _wait_rows(tail, 20)

    site.stop()
    sent += await _emit(provider, 20)  # nobody serves the page now
    site.start()
    sent += await _emit(provider, 20)
    await _wait_rows(tail, 60)
    assert await _rows(tail) == sent, "each once, in their order, none missing"
    assert "missed" not in await tail.inner_text("#tail")
    assert await tail.is_hidden("#stale")
    await tail.context.close()
    site.stop()


async def test_check_15_the_command_ends_beside_a_tail(
    run: Callable[..., Program], server: Backend, browser: Browser, tmp_path: Any
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    port = free_port()
    program = run("dashboard", "--url", server.url, "--port", str(port), "--token-file", str(token))
    site = Site.__new__(Site)
    site.program, site.base = program, f"http://127.0.0.1:{port}"
    tail = await _sign_in(browser, site)
    await tail.goto(f"{site.base}/tail")
    await _wait_told(tail)
    site.stop()


async def test_check_14_a_tail_asks_for_nothing_while_it_is_paused_or_hidden_and_catches_up(
    shop: Shop, open_page: Callable[..., Any], watch: Watch
) -> None:
    page = await open_page("/tail")
    await _wait_told(page)
    await page.click("#pause")
    seen = len(watch.requests)
    job_id = await shop.fail("no money")
    await page.wait_for_timeout(1500)
    assert len(watch.requests) == seen
    assert job_id not in await page.inner_text("#tail")
    await page.click("#pause")
    await page.wait_for_selector(f"#tail code:has-text('{job_id}')")
    assert "no money" not in await page.inner_text("#tail")
    await page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    seen = len(watch.requests)
    await page.wait_for_timeout(1500)
    assert len(watch.requests) == seen


async def test_check_16_a_server_that_dies_is_told_and_is_back_by_itself(
    run: Callable[..., Program], server: Backend, provider: EventProvider, browser: Browser
) -> None:
    site = Site(run, server.url)
    await _emit(provider, 3)
    page = await _sign_in(browser, site)
    await page.goto(f"{site.base}/queues/event.paid?state=waiting")
    shown = await page.inner_text("tbody")
    assert await page.is_hidden("#stale")
    server.kill()
    await page.wait_for_selector("#stale:visible")
    assert await page.evaluate("document.body.classList.contains('is-stale')")
    assert await page.inner_text("tbody") == shown, "what was known stays, marked as old"
    answer = await page.evaluate(
        "fetch('../api/v1/queues/event.paid/pause', "
        "{method: 'POST', body: '{}', headers: {'content-type': 'application/json'}})"
        ".then(async (answer) => [answer.status, (await answer.json()).detail])"
    )
    assert answer[0] == 503
    assert "does not answer" in answer[1] or "did not answer" in answer[1]
    own = await page.context.request.get(f"http://127.0.0.1:{site.port}/own")
    assert own.ok, "pages of the program itself are there as ever"
    server.start()
    await page.wait_for_selector("#stale", state="hidden")
