"""The stream of changes as server-sent events: a slice of a tail for each request.

An event has the position of its change as its id, so that a browser which comes back, by itself, goes on
behind it (`Last-Event-ID`). The last event of a slice has no change, but the position from which the next one
goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.tail import ChangeView, Slice, TailQuery, open_slice
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.links import Links
from eventbus.dashboard.reading import read_query

MEDIA_TYPE = "text/event-stream"
_RETRY_MS = 250
_SLOWEST = 10.0
"""Seconds that a viewer has to take a slice."""


class _Stream(StreamingResponse):
    """The answer with one slice, which ends with it, whoever ends it.

    A viewer that takes nothing, such as a laptop that sleeps, would hold its place until its connection
    breaks. So it is cut off; its browser comes back with the last position that it has got.
    """

    def __init__(self, told: Slice) -> None:
        headers = {"x-accel-buffering": "no"}  # a proxy passes it on as it comes
        super().__init__(_lines(told), media_type=MEDIA_TYPE, headers=headers)
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(_SLOWEST):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            pass  # the server closes the connection of an answer that is not whole
        finally:
            await self._told.aclose()


async def answer_stream(desk: Desk, request: Request, caller: Caller, _links: Links) -> Response:
    """Answer with a slice."""
    query = read_query(request, TailQuery)
    last = request.headers.get("last-event-id", "")
    told = await open_slice(desk, caller, msgspec.structs.replace(query, since=last or query.since))
    if request.method == "HEAD":  # asks only whether there would be one
        await told.aclose()
        return Response(media_type=MEDIA_TYPE)
    return _Stream(told)


async def _lines(told: Slice) -> AsyncGenerator[bytes]:
    yield f"retry: {_RETRY_MS}\n: the changes of jobs and queues\n\n".encode()
    async for changes in told.read():
        yield b"".join(map(_line, changes))
    yield f'id: {told.reached}\nevent: slice\ndata: {{"since":"{told.reached}"}}\n\n'.encode()


def _line(change: ChangeView) -> bytes:
    return f"id: {change.position}\nevent: change\ndata: {msgspec.json.encode(change).decode()}\n\n".encode()
