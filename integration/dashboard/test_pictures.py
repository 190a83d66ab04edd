"""Each page at the width of a desk and of a phone, in both themes: nothing stands out of it. It makes the
pictures of the docs.

    EVENTBUS_TEST_PICTURES=/tmp/pictures pytest integration/dashboard/test_pictures.py

writes a picture of each page, theme and width, `<page>-<theme>-<width>.png`, and those of the docs,
`dashboard-<page>.png`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from apps.pages.scene import Order, placed, play, set_up
from harness.shop import serving

from eventbus import EventProvider
from eventbus.dashboard import Dashboard
from workflows import WorkflowProvider

if TYPE_CHECKING:
    from playwright.async_api import FloatRect, Page

Open = Callable[..., Awaitable["Page"]]

_CUT = """() => [...document.querySelectorAll(".wide")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.ariaLabel)"""
"""Tables that must be scrolled to be read."""
_DOCS = {
    "queues": ("dark", 0, 1280, 620),
    "queue": ("light", 0, 1280, 560),
    "flow": ("light", 255, 1280, 1010),
    "event": ("dark", 0, 760, 760),
    "tail": ("dark", 0, 1280, 520),
    "server": ("light", 0, 1280, 820),
}
"""The theme, the top, the width and the height of the pictures in the docs."""
_PICTURES = os.environ.get("EVENTBUS_TEST_PICTURES", "")
_OUT = """() => {
  const wide = document.documentElement.clientWidth;
  const boxed = (element) => element.closest(".wide, .graph, pre, .skip, .unseen, svg");
  return [...document.querySelectorAll("body *")]
    .filter((element) => !boxed(element) && element.getBoundingClientRect().right > wide + 1)
    .map((element) => `${element.tagName} ${element.className}: ${element.textContent.trim().slice(0, 40)}`);
}"""
"""What stands out of the page on its right, but for what scrolls in a box of its own."""


class _Stage:
    """The program with the scene, as `serving` takes one."""

    def __init__(self) -> None:
        self.provider = EventProvider("memory:", concurrency=20)
        self.flows = WorkflowProvider(self.provider)
        self.delivery = set_up(self.provider, self.flows)
        self.gate = asyncio.Event()
        self.dashboard: Dashboard
        self.url = ""
        self.paths: dict[str, str] = {}


@pytest.fixture
async def shop() -> AsyncIterator[_Stage]:
    """In place of the shop of the other tests."""
    stage = _Stage()
    async with stage.provider, play(stage.provider, stage.flows, stage.delivery) as scene, serving(stage):
        stage.paths = scene.paths
        yield stage


async def _arrange(shop: _Stage, page: Page, name: str) -> None:
    """Let a page show what it is for, with its forms open."""
    if name in ("flow", "nested-flow"):
        await page.wait_for_selector("#graph g.node")
    if name == "queue":
        for box in (await page.query_selector_all("tbody input[type=checkbox]"))[:3]:
            await box.check()
    if name == "tail":
        await page.wait_for_selector("#tail-state:has-text('as it happens')")
        orders = [Order(n, f"customer {n}", "4111111111111111") for n in range(102, 105)]
        shop.provider.emit_many(placed, orders, reply=False)
        await page.wait_for_selector("#tail tbody tr:nth-child(9)")
    if name == "event":
        await page.click("summary:has-text('Emit')")


async def _shoot(page: Page, name: str, theme: str) -> None:
    """Make the picture of the docs, if there is one of this page in this theme."""
    wanted, top, width, height = _DOCS.get(name, ("", 0, 0, 0))
    if _PICTURES and wanted == theme:
        part: FloatRect = {"x": 0, "y": top, "width": width, "height": height}
        await page.screenshot(path=Path(_PICTURES) / f"dashboard-{name}.png", full_page=True, clip=part)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
async def test_no_page_stands_out_of_its_window(
    shop: _Stage, open_page: Open, theme: str, width: int
) -> None:
    viewport = {"width": width, "height": 800}
    page = await open_page(color_scheme=theme, viewport=viewport, device_scale_factor=1)
    await page.click("#pause")  # a picture needs some rest
    for name, path in shop.paths.items():
        await page.goto(path)
        await _arrange(shop, page, name)
        if width == 1280:
            await _shoot(page, name, theme)
        for act in await page.query_selector_all("details.act"):
            await act.evaluate("(act) => { act.open = true; }")
        assert await page.evaluate(_OUT) == [], (name, width)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
        if width == 1280:
            assert await page.evaluate(_CUT) == [], name
        if _PICTURES:
            file = Path(_PICTURES) / f"{name}-{theme}-{width}.png"
            await page.screenshot(path=file, full_page=True)
