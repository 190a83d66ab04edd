"""Watches the pages of a test: errors in their consoles, dialogs, requests to other hosts, what they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["Watch", "count_calls"]


class Watch:
    """What the pages of a test must not do."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self._more = asyncio.Event()
        self.expected: tuple[str, ...] = ()
        """Parts of messages that the test itself provokes."""

    def follow(self, page: Page) -> None:
        """Watch a page from now on."""
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))
        page.on("dialog", lambda dialog: self._note("error", f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._see(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(part in text for part in self.expected):
            self.wrong.append(text)

    async def wait_requests(self, count: int) -> None:
        """Wait for so many more requests."""
        wanted = len(self.requests) + count
        while len(self.requests) < wanted:
            self._more.clear()
            await self._more.wait()

    def _see(self, url: str) -> None:
        self.requests.append(url)
        self._more.set()
        if not url.startswith((f"{self.origin}/", "data:", "about:")) and not any(
            part in url for part in self.expected
        ):
            self.wrong.append(f"a request to {url}")


@asynccontextmanager
async def count_calls(page: Page) -> AsyncGenerator[dict[str, int]]:
    """Count how often functions of each script of a page are called meanwhile: name of the file -> calls.
    What runs in workers of the page does not count, because it holds nothing up.
    """
    session = await page.context.new_cdp_session(page)
    calls: dict[str, int] = {}
    await session.send("Profiler.enable")
    await session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    yield calls
    found = await session.send("Profiler.takePreciseCoverage")
    for script in found["result"]:
        name = script["url"].rpartition("/")[2].partition("?")[0]
        calls[name] = sum(each["ranges"][0]["count"] for each in script["functions"])
    await session.detach()
