"""Signing in and out: the form for the token, the link with a code, and the end of a session."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from eventbus.dashboard.entry.actor import Actor
from eventbus.dashboard.entry.gate import Gate
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.rendering import Renderer
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.reading import read_form
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.dashboard")


class SignInPages:
    """The pages that need no session. Each of them is there only if people sign in here."""

    def __init__(self, gate: Gate, renderer: Renderer) -> None:
        self._gate = gate
        self._renderer = renderer

    async def show(self, request: Request, links: Links) -> Response:
        """Show the form; a link with a code signs in at once, and leaves no code in the address bar."""
        self._check_own()
        code = request.query_params.get("code", "")
        if not code or request.method != "GET":
            return self.form(request, links)
        address = self._gate.origins.address(request)
        try:
            self._gate.use_code(code, address)
        except Problem as problem:
            return self.form(request, links, problem)
        return self._begin(request, Actor("local"), address, links())

    async def submit(self, request: Request, links: Links) -> Response:
        """Sign in with the token of the form."""
        self._check_own()
        self._gate.check_page(request)
        given, address = await read_form(request), self._gate.origins.address(request)
        try:
            self._gate.check_token(given.get("token", ""), address)
        except Problem as problem:
            return self.form(request, links, problem, following=given.get("next", ""))
        return self._begin(request, Actor("token"), address, links.next_after_sign_in(given.get("next", "")))

    async def leave(self, request: Request, links: Links) -> Response:
        """End the session."""
        self._check_own()
        self._gate.check_page(request)
        is_secure = self._gate.origins.is_secure(request)
        cookie = self._gate.sessions.end(request.cookies, is_secure=is_secure)
        return Response(status_code=303, headers={"location": links("sign-in"), "set-cookie": cookie})

    def form(
        self, request: Request, links: Links, problem: Problem | None = None, *, following: str = ""
    ) -> Response:
        """Return the page with the form; with a problem in its status, and with what went wrong."""
        return self._renderer.plain(
            request,
            None,
            links,
            "sign_in",
            status=200 if problem is None else problem.status,
            headers={} if problem is None else problem.headers,
            problem="" if problem is None else problem.detail,
            has_token=self._gate.credentials.has_token,
            following=following or request.query_params.get("next", ""),
        )

    def _begin(self, request: Request, actor: Actor, address: str, url: str) -> Response:
        is_secure = self._gate.origins.is_secure(request)
        cookie = self._gate.sessions.begin(actor, is_secure=is_secure)
        _log.info("dashboard sign-in", actor=actor.name, address=address)
        return Response(status_code=303, headers={"location": url, "set-cookie": cookie})

    def _check_own(self) -> None:
        if not self._gate.has_own_form:
            raise Problem(404, "people sign in with the program around this dashboard, not here")
