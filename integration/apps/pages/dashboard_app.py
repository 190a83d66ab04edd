"""A program that serves its dashboard with uvicorn as users do: `python -m apps.pages.dashboard_app PORT`."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from harness.shop import TOKEN
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from eventbus import EventProvider
from eventbus.dashboard import Dashboard


async def own(_: Request) -> Response:
    """A page of the program itself."""
    return Response("own")


def main() -> None:
    (port,) = sys.argv[1:]
    provider = EventProvider()

    @asynccontextmanager
    async def live(_: Starlette) -> AsyncGenerator[None]:
        async with provider:
            yield

    dashboard = Dashboard(provider, token=TOKEN, secret="a-secret-that-both-processes-share-0000")
    app = Starlette(routes=[Route("/own", own), Mount("/ops", dashboard)], lifespan=live)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
