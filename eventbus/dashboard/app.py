"""The dashboard as an ASGI app: one request from its host check to its answer.

    host -> static file or sign-in page? -> caller -> route -> handler -> answer, with our headers on it

What must always hold: without a caller nothing is answered but static files and the sign-in page, not even
whether a path exists; every answer, also that of an error, has the headers; an app of its own is kept in its
objects and never in a module, so that one process can hold several.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from eventbus.dashboard import timeouts
from eventbus.dashboard.api.routes import API, Handler, api_handlers
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.entry.actor import Actor
from eventbus.dashboard.entry.credentials import Credentials
from eventbus.dashboard.entry.gate import Gate, SignIn
from eventbus.dashboard.entry.headers import HeaderWriter
from eventbus.dashboard.entry.hooks import After, Before, Hooks
from eventbus.dashboard.entry.origin import LOOPBACK, Origins
from eventbus.dashboard.entry.rights import ActionRules, May, Rights
from eventbus.dashboard.entry.sessions import Sessions
from eventbus.dashboard.flow_source import FlowSource
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.rendering import Renderer
from eventbus.dashboard.pages.routes import page_handlers
from eventbus.dashboard.pages.sign_in import SignInPages
from eventbus.dashboard.problem import Problem, problem_of
from eventbus.dashboard.redaction import Redact
from eventbus.errors import ConfigError, EventBusError, UsageError
from eventbus.model import chance
from eventbus.model.containment import contained_await
from eventbus.model.durations import Duration, seconds
from eventbus.provider import EventProvider
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.dashboard")


class Dashboard:
    """Pages and an API to look at a provider's queues, jobs, flows and schedules, and to act on them.

        app.mount("/ops/bus", Dashboard(provider, flows=flows, sign_in=current_user))

    It is an ASGI app. The program that mounts it starts the provider; until then it answers 503.
    """

    def __init__(
        self,
        provider: EventProvider,
        *,
        flows: FlowSource | None = None,
        sign_in: SignIn | None = None,
        token: str | None = None,
        one_time_codes: bool = False,
        insecure_allow_anyone: bool = False,
        may: May | None = None,
        actions: ActionRules | None = None,
        before: Mapping[str, Before] | None = None,
        after: Mapping[str, After] | None = None,
        read_only: bool = False,
        base_path: str | None = None,
        redact: Redact = "patterns",
        poll: Duration = 2,
        secret: str | None = None,
        allowed_hosts: Collection[str] | None = None,
        public_origin: str | None = None,
        trusted_proxies: Collection[str] = (),
        frame_ancestors: str = "'none'",
    ) -> None:
        """Make a dashboard that is closed but for those whom one of these lets in:

        `sign_in(request)` returns the Actor of the program around, or None; it may be async. `token`, 16
        characters or more, is typed into a form, or sent as `Authorization: Bearer`. `one_time_codes` lets
        `make_code` make links. With `insecure_allow_anyone` everybody is in who reaches it by a host name of
        `allowed_hosts`, by default a local one.

        `may(actor, action, target)` returns True, False or the reason why not; `actions` maps globs of events
        to actions and these to True, False or a role. `before` and `after` map actions, or `*`, to hooks.
        `read_only` refuses whatever changes something. `base_path` is where it is mounted, if the program
        around does not say so. `redact` is `patterns`, `all`, `none` or a function of event and field. `poll`
        is how often open pages look again. `secret` signs the cookies of several processes. `public_origin`
        is the origin that browsers see behind a proxy; `trusted_proxies` are addresses whose
        `X-Forwarded-For` is believed. `frame_ancestors` is the source list of those who may frame pages.

        Raises ConfigError if nobody could come in, or for an option that cannot be used.
        """
        _check_entry(sign_in, token, insecure_allow_anyone, one_time_codes=one_time_codes)
        if re.search(r"[;,\r\n]", frame_ancestors):
            raise ConfigError(
                f"expected frame_ancestors as sources with spaces between, got: {frame_ancestors!r}",
                setting="frame_ancestors",
            )
        hosts = LOOPBACK if insecure_allow_anyone and allowed_hosts is None else allowed_hosts
        self._has_codes = one_time_codes
        self._base_path = _check_base(base_path)
        self._frame_ancestors = frame_ancestors
        self._gate = Gate(
            sign_in=sign_in,
            anyone=Actor("anyone") if insecure_allow_anyone else None,
            credentials=Credentials(token),
            sessions=Sessions(secret, token),
            origins=Origins(
                allowed_hosts=hosts, public_origin=public_origin, trusted_proxies=trusted_proxies
            ),
        )
        rights = Rights(may=may, actions=actions or {}, is_read_only=read_only)
        self._desk = desk = Desk(
            provider, flows, rights=rights, hooks=Hooks(before or {}, after or {}), redact=redact
        )
        interval = max(seconds(poll, setting="poll"), 0.5)
        self._renderer = Renderer(desk, poll_seconds=interval, can_sign_out=self._gate.has_own_form)
        self._sign_in = SignInPages(self._gate, self._renderer)
        self._routes: dict[str, tuple[re.Pattern[str], dict[str, Handler]]] = {}
        for method, path, handler in [*api_handlers(desk), *page_handlers(desk, self._renderer)]:
            self._routes.setdefault(path, (compile_path(path)[0], {}))[1][method] = handler

    def make_code(self) -> str:
        """Return a code that signs in once, within five minutes: `<base>/sign-in?code=<code>`.

        Raises UsageError unless the dashboard was made with `one_time_codes=True`.
        """
        if not self._has_codes:
            raise UsageError("this dashboard has no codes; make it with one_time_codes=True")
        return self._gate.credentials.make_code()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "no such thing here"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = chance.token(8)
        base, path = self._place(scope)
        inner = {**scope, "path": path, "root_path": "", "app_root_path": ""}
        links, request = Links(base), Request(inner, receive)
        writer = HeaderWriter(send, frame_ancestors=self._frame_ancestors, request_id=request_id)
        try:
            async with asyncio.timeout(timeouts.REQUEST):
                response = await contained_await(self._answer(request, links, request_id))
        except Exception as error:  # noqa: BLE001  (each becomes an answer)
            response = self._explain(request, links, request_id, error)
        await response(inner, receive, writer)

    def _place(self, scope: Scope) -> tuple[str, str]:
        """Return where this app is mounted, and the path below that."""
        path: str = scope["path"]
        root: str = scope.get("root_path", "").rstrip("/")
        for prefix in (root, self._base_path or ""):
            if prefix and (path == prefix or path.startswith(f"{prefix}/")):
                path = path[len(prefix) :]
        base = root if self._base_path is None else self._base_path
        return quote(base), "/" + path.strip("/")

    async def _answer(self, request: Request, links: Links, request_id: str) -> Response:
        self._gate.check_host(request)
        path, is_read = request.scope["path"], request.method in ("GET", "HEAD")
        if path.startswith("/static/") and is_read:
            return self._renderer.assets.answer(path.removeprefix("/static/"))
        if path == "/sign-in" and is_read:
            return await self._sign_in.show(request, links)
        if path in ("/sign-in", "/sign-out") and not is_read:
            # By POST alone: methods that change nothing need no page of ours, and these would end a session.
            if request.method != "POST":
                raise _impossible(request, ["POST"])
            return await (self._sign_in.submit if path == "/sign-in" else self._sign_in.leave)(request, links)
        caller = await self._gate.find_caller(request, request_id)
        handler = self._find(request)
        return await handler(request, caller, links)

    def _find(self, request: Request) -> Handler:
        path, method = request.scope["path"], "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for pattern, handlers in self._routes.values():
            match = pattern.match(path)
            if match is None:
                continue
            if method in handlers:
                request.scope["path_params"] = match.groupdict()
                return handlers[method]
            allowed += handlers
        if allowed:
            raise _impossible(request, allowed)
        raise Problem(404, "there is no such page")

    def _explain(self, request: Request, links: Links, request_id: str, error: Exception) -> Response:
        """Return the answer for an error: JSON for programs, a page for people, a form for those not signed
        in.
        """
        problem = _read(error, request_id)
        path: str = request.scope["path"]
        if path == API or path.startswith(f"{API}/"):
            return problem.answer(request_id)
        is_page = request.method == "GET" and request.headers.get("hx-request") != "true"
        if problem.status == 401 and self._gate.has_own_form and is_page and path != "/sign-in":
            following = links.base + quote(path)
            query = {} if path == "/" else {"next": following}
            return Response(status_code=303, headers={"location": links("sign-in", **query)})
        return self._renderer.plain(
            request,
            None,
            links,
            "problem",
            status=problem.status,
            headers=problem.headers,
            problem=problem,
            request_id=request_id,
        )


def _impossible(request: Request, allowed: Collection[str]) -> Problem:
    headers = {"allow": ", ".join(sorted(allowed))}
    return Problem(405, f"{request.method} is not possible here", headers=headers)


def _read(error: Exception, request_id: str) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(
        error, RecursionError
    ):  # a value of somebody's; what is sent here is bounded by `check_depth`
        return Problem(422, "a value is nested so deep that it cannot be read here")
    if isinstance(error, EventBusError):
        return problem_of(error)
    if isinstance(error, HTTPException):  # of the program around: its sign_in answers so
        return Problem(error.status_code, error.detail, headers=dict(error.headers or {}))
    if isinstance(error, TimeoutError):
        return Problem(
            503,
            "the server did not answer in time; a change that was asked for may have happened",
            headers={"retry-after": "2"},
        )
    _log.error("dashboard request failed", request=request_id, exc_info=error)
    return Problem(500, "an unexpected error; the log has it with the id of this request")


def _check_entry(sign_in: object, token: object, anyone: bool, *, one_time_codes: bool) -> None:
    if sign_in is None and token is None and not one_time_codes and not anyone:
        raise ConfigError(
            "nobody could use this dashboard; give sign_in=, token= or one_time_codes=True, or "
            "insecure_allow_anyone=True if whoever reaches it may do everything"
        )
    if anyone and (sign_in is not None or token is not None or one_time_codes):
        raise ConfigError(
            "insecure_allow_anyone lets everybody in, so sign_in, token and one_time_codes would be without "
            "effect",
            setting="insecure_allow_anyone",
        )


def _check_base(base_path: str | None) -> str | None:
    if base_path is None:
        return None
    if base_path and (
        not base_path.startswith("/") or base_path.startswith("//") or not base_path.isprintable()
    ):
        raise ConfigError(f"expected base_path as /a/path, got: {base_path!r}", setting="base_path")
    return base_path.rstrip("/")


async def _live(receive: Receive, send: Send) -> None:
    """Take part in the lifespan of a server that serves this app alone. Nothing begins or ends here."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
