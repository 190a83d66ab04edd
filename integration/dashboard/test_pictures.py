"""Each page at the width of a desk and of a phone, in both themes: nothing stands out of it. It makes the pictures of the docs.

    EVENTBUS_TEST_PICTURES=/tmp/pictures pytest integration/dashboard/test_pictures.py

writes a picture of each page, theme and width, `<page>-<theme>-<width>.png`; those of the docs are some of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.scene import play, set_up
from harness.shop import serving

from eventbus import EventProvider
from eventbus.dashboard import Dashboard
from workflows import WorkflowProvider

if TYPE_CHECKING:
    from playwright.async_api import Page

Open = Callable[..., Awaitable["Page"]]

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
    async with (
        stage.provider,
        play(stage.provider, stage.flows, stage.delivery) as scene,
        serving(stage),
    ):
        stage.paths = scene.paths
        yield stage


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
        if name in ("flow", "nested-flow"):
            await page.wait_for_selector("#graph g.node")
        assert await page.evaluate(_OUT) == [], (name, width)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
        if _PICTURES:
            file = Path(_PICTURES) / f"{name}-{theme}-{width}.png"
            await page.screenshot(path=file, full_page=True)
