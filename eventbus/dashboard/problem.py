"""Problems: what a request is told when it cannot be answered, in the form of RFC 9457.

Every error that a caller may meet is translated here, once. What must always hold: no answer has a stack
trace, and none has the text of an error that this package did not write; such an error is logged, and its
answer has the id of the request alone.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from eventbus.errors import (
    CountChanged,
    DefinitionError,
    EventBusError,
    NoWorker,
    PayloadError,
    ProviderStopped,
    QueueFull,
    StoreCorrupt,
    StoreError,
    UnknownJob,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"

_MISSING = re.compile(r"missing required field `([^`]*)`")

STATUSES: dict[int, str] = {
    400: "bad request",
    401: "not signed in",
    403: "not allowed",
    404: "not found",
    405: "no such method here",
    409: "not possible in this state",
    412: "changed meanwhile",
    413: "too large",
    415: "wrong media type",
    422: "not valid",
    429: "too many",
    500: "unexpected error",
    503: "not available",
}
"""The title of each status that an error can have."""


class Problem(Exception):
    """A request cannot be answered. `detail` is one sentence for people; `facts` are values for programs."""

    def __init__(
        self, status: int, detail: str, *, headers: dict[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: dict[str, str] = headers or {}
        self.facts = facts

    @property
    def title(self) -> str:
        """The kind of problem in few words."""
        return STATUSES.get(self.status) or HTTPStatus(self.status).phrase.lower()

    def answer(self, request_id: str) -> Response:
        """Return the answer for a program."""
        body = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": f"urn:request:{request_id}",
            **self.facts,
        }
        return Response(msgspec.json.encode(body), self.status, self.headers, media_type=MEDIA_TYPE)


_RULES: tuple[tuple[type[EventBusError], int], ...] = (
    (UnknownJob, 404),
    (CountChanged, 412),
    (DefinitionError, 422),
    (PayloadError, 422),
    (QueueFull, 429),
    (NoWorker, 429),
    (StoreCorrupt, 409),
    (StoreError, 503),
    (ProviderStopped, 503),
    (UsageError, 409),
    (EventBusError, 409),
)
"""The first class that fits gives the status."""


def problem_of(error: EventBusError) -> Problem:
    """Return the problem that an error of this package, or of one built on it, stands for."""
    status = next(status for kind, status in _RULES if isinstance(error, kind))
    if isinstance(error, StoreError) and status == 503:
        # Its text may name the server's address, which is nobody's business here.
        return Problem(503, "the server does not answer, or refuses; try again", headers={"retry-after": "2"})
    if isinstance(error, ProviderStopped):
        detail = (
            "the provider behind this dashboard is not started; start it before, because a mounted app cannot"
        )
        return Problem(503, detail, headers={"retry-after": "2"})
    if isinstance(error, CountChanged):
        return Problem(status, str(error), count=error.count)
    if isinstance(error, PayloadError):
        return Problem(status, str(error), errors=[_place_of(error)])
    return Problem(status, str(error))


def _place_of(error: PayloadError) -> dict[str, str]:
    """Return the field of a payload that does not fit, as a JSON pointer."""
    path = (error.path or "").removeprefix("$").replace("[", ".").replace("]", "")
    missing = _MISSING.search(str(error))
    pointer = path.replace(".", "/") + (f"/{missing[1]}" if missing else "")
    return {"pointer": pointer, "detail": str(error)}
