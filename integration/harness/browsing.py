"""What every test wants of the browser: pages that are waited for as long as a busy machine needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

__all__ = ["open_context", "wait_until"]

_WITHIN = 240_000.0
"""Milliseconds after which a page hangs. It is a net and no bound, because a busy machine is slow."""


async def open_context(browser: Browser, **options: Any) -> BrowserContext:
    """Open a context, as `browser.new_context(**options)` does, whose pages wait for `_WITHIN`."""
    context = await browser.new_context(**options)
    context.set_default_timeout(_WITHIN)
    return context


async def wait_until(page: Page, condition: str, what: str, argument: Any = None) -> None:
    """Wait until `condition`, a function of the page, is true of `argument`.

    Raises AssertionError, which names `what`.
    """
    try:
        await page.wait_for_function(condition, arg=argument)
    except Exception as error:
        raise AssertionError(f"not within {_WITHIN / 1000:.0f} s: {what}") from error
