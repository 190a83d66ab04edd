"""Dashboards over HTTP, in the loop of the test: a client speaks to the app itself, on the shared server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from eventbus import EventProvider
from eventbus.dashboard import Dashboard

ORIGIN = "http://localhost"


class Client(httpx2.AsyncClient):
    """A browser with one dashboard open: it says where its requests come from, and follows no redirect."""

    def __init__(self, app: Any, *, origin: str = ORIGIN, **options: Any) -> None:
        # The app turns each error into an answer; one that gets out of it must fail the test.
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=True)
        headers = {"origin": origin, **options.pop("headers", {})}
        super().__init__(transport=transport, base_url=origin, headers=headers, **options)

    async def act(self, path: str, **body: Any) -> httpx2.Response:
        """Post an order to the API."""
        return await self.post(f"/api/v1{path}", json=body)


@pytest.fixture
async def provider(make_provider: Callable[..., EventProvider], stack: AsyncExitStack) -> EventProvider:
    """A started provider, without a worker."""
    return await stack.enter_async_context(make_provider())


@pytest.fixture
async def open_dashboard(stack: AsyncExitStack) -> Callable[..., Any]:
    """Make a dashboard, and return a client of it; everybody is in unless the options say otherwise."""

    def make(provider: EventProvider, *, headers: dict[str, str] | None = None, **options: Any) -> Client:
        if not {"sign_in", "token", "one_time_codes"} & set(options):
            options.setdefault("insecure_allow_anyone", True)
        client = Client(Dashboard(provider, **options), headers=headers or {})
        stack.push_async_callback(client.aclose)
        return client

    return make
