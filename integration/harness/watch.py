"""Watches the pages of a test: errors in their consoles, dialogs, requests to other hosts, and how long they
are busy.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["Watch", "task_times"]


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


def task_times(trace: bytes) -> list[float]:
    """Return the CPU time, ms, of each task of the pages' threads."""
    events = json.loads(trace)["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event["tdur"] / 1000
        for event in events
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in threads and "tdur" in event
    ]
