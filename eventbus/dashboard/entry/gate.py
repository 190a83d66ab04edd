"""The gate: each request passes it, and leaves with the caller whose request it is, or with a problem.

    is the host ours? -> who is it? -> did one of our own pages send it, if it may change something?

A program shows the token in `Authorization: Bearer`. No browser adds that by itself, so such a request needs
no proof of the page that sent it. All others do: a cookie, and whatever `sign_in` looks at, are added by
browsers to requests of foreign pages too.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request

from eventbus.dashboard.entry.actor import Actor
from eventbus.dashboard.entry.credentials import Credentials
from eventbus.dashboard.entry.origin import Origins
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.entry.sessions import Sessions
from eventbus.dashboard.problem import Problem
from eventbus.telemetry.logging import get_logger

SignIn: TypeAlias = Callable[[Request], "Actor | Awaitable[Actor | None] | None"]
"""Tells whose request it is, None for nobody's."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_log = get_logger("eventbus.dashboard")


Asked: TypeAlias = "tuple[Action, Target, str]"
"""An action that a request asked for, its target, and the reason that was given."""


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request, and from where; `asked` are the actions that it has asked for so far."""

    actor: Actor
    address: str
    request_id: str
    asked: list[Asked] = []


class Gate:
    """Decides whose request it is."""

    def __init__(
        self,
        *,
        sign_in: SignIn | None,
        anyone: Actor | None,
        credentials: Credentials,
        sessions: Sessions,
        origins: Origins,
    ) -> None:
        self._sign_in = sign_in
        self._anyone = anyone
        self.credentials = credentials
        self.sessions = sessions
        self.origins = origins

    @property
    def has_own_form(self) -> bool:
        """Whether people sign in here, and not with the program around."""
        return self._sign_in is None and self._anyone is None

    def check_host(self, request: Request) -> None:
        """Raise a Problem for a request to a host that is not ours."""
        if not self.origins.is_known_host(request):
            raise Problem(
                400, "this host name is not one of this dashboard; add it to allowed_hosts if it should be"
            )

    def check_page(self, request: Request) -> None:
        """Raise a Problem unless one of our own pages sent a request that may change something."""
        if request.method not in SAFE and not self.origins.is_own_page(request):
            raise Problem(
                403,
                "no page of this dashboard sent this request, so it changes nothing; "
                "behind a proxy, give public_origin",
            )

    async def find_caller(self, request: Request, request_id: str) -> Caller:
        """Return the caller of a request to anything but the sign-in page. Raises Problem."""
        address = self.origins.address(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.credentials.has_token:
            self.check_token(token.strip(), address)
            return Caller(Actor("token"), address, request_id)
        actor = await self._find_actor(request)
        if actor is None:
            raise Problem(
                401, "sign in first", headers={"www-authenticate": 'Bearer realm="eventbus dashboard"'}
            )
        self.check_page(request)
        return Caller(actor, address, request_id)

    def check_token(self, given: str, address: str) -> None:
        """Raise a Problem unless it is the token, and the address may still try."""
        self._check_patience(address)
        if not self.credentials.is_token(given):
            self._refuse(address, "the token is wrong")

    def use_code(self, given: str, address: str) -> None:
        """Void a code. Raise a Problem unless it was good.

        A wrong one is no failure of the address: nobody guesses 32 random bytes, and any foreign page can
        open such links.
        """
        self._check_patience(address)
        if not self.credentials.use_code(given):
            _log.warning("dashboard sign-in refused", address=address)
            raise Problem(401, "the link was used before, or is older than five minutes; ask for another one")

    def _check_patience(self, address: str) -> None:
        seconds = self.credentials.wait_after_failures(address)
        if seconds > 0:
            headers = {"retry-after": str(int(seconds) + 1)}
            raise Problem(429, "too many failed sign-ins from your address; wait a minute", headers=headers)

    def _refuse(self, address: str, detail: str) -> None:
        self.credentials.note_failure(address)
        _log.warning("dashboard sign-in refused", address=address)
        raise Problem(401, detail)

    async def _find_actor(self, request: Request) -> Actor | None:
        if self._anyone is not None:
            return self._anyone
        if self._sign_in is None:
            return self.sessions.read(request.cookies, is_secure=self.origins.is_secure(request))
        found: Any = self._sign_in(request)
        if inspect.isawaitable(found):
            found = await found
        if found is None or isinstance(found, Actor):
            return found
        raise TypeError(f"expected sign_in to return an Actor or None, got: {type(found).__name__}")
