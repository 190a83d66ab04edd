"""Rendering: templates to answers.

Autoescape is on for every template, and each value passes `visible` before. A page has a part that changes
while it is looked at; a script asks for that part alone, with the tag of what it has, and is told 304 if
nothing changed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from eventbus._version import __version__
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.entry.actor import Actor
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.assets import Assets
from eventbus.dashboard.pages.visible import json_text, moment, span, visible
from eventbus.model import clock
from eventbus.schedules.options import show_times

_FOLDER = Path(__file__).parent.parent / "templates"


class Renderer:
    """Renders the pages of one dashboard."""

    def __init__(self, desk: Desk, *, poll_seconds: float, can_sign_out: bool) -> None:
        self.assets: Assets = Assets()
        self._desk = desk
        self._poll_seconds = poll_seconds
        self._can_sign_out = can_sign_out
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            finalize=visible,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update({"moment": moment, "json_text": json_text, "times": show_times})

    def page(self, request: Request, actor: Actor, links: Links, name: str, **values: Any) -> Response:
        """Return a page, or its live part if a script asks for that. `name` is its template."""
        shared = self._shared(request, links, actor, values)
        live_name = f"{name}_live.html"
        tag = hashlib.sha256(self._render(live_name, shared).encode()).hexdigest()[:16]
        headers = {"hx-ptag": tag}
        shared |= {"live_name": live_name, "tag": tag, "poll_seconds": self._poll_seconds}
        if request.headers.get("hx-request") != "true":
            return Response(self._render(f"{name}.html", shared), media_type="text/html")
        if request.headers.get("hx-ptag") == tag:
            return Response(status_code=304, headers=headers)
        return Response(self._render("live.html", shared), headers=headers, media_type="text/html")

    def plain(
        self,
        request: Request,
        actor: Actor | None,
        links: Links,
        name: str,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        media: str = "text/html",
        **values: Any,
    ) -> Response:
        """Return what does not change by itself: a page, or by the whole name of its template a file."""
        template = name if "." in name else f"{name}.html"
        text = self._render(template, self._shared(request, links, actor, values))
        return Response(text, status, headers, media_type=media)

    def _render(self, template: str, values: dict[str, Any]) -> str:
        return self._environment.get_template(template).render(values)

    def _shared(
        self, request: Request, links: Links, actor: Actor | None, values: dict[str, Any]
    ) -> dict[str, Any]:
        query = [(name, value) for name, value in request.query_params.multi_items() if name != "done"]
        return {
            "own": links.base
            + quote(request.scope["path"], safe="/~@:!")
            + (f"?{urlencode(query)}" if query else ""),
            "links": links,
            "span": span,
            "asset": self.assets.url,
            "actor": actor,
            "version": __version__,
            "has_flows": self._desk.flows is not None,
            "is_read_only": self._desk.rights.is_read_only,
            "can_sign_out": self._can_sign_out,
            "section": request.scope["path"].split("/")[1],
            "done": request.query_params.get("done", ""),
            "once": secrets.token_urlsafe(12),
            "now_ms": round(clock.now() * 1000),
            **values,
        }


class Visit(NamedTuple):
    """A request for a page: whose it is, and with what it is answered."""

    desk: Desk
    renderer: Renderer
    request: Request
    caller: Caller
    links: Links

    def page(self, name: str, **values: Any) -> Response:
        """Return a page, as `Renderer.page`."""
        return self.renderer.page(self.request, self.caller.actor, self.links, name, **values)

    def plain(self, name: str, **values: Any) -> Response:
        """Return a page that does not change by itself, as `Renderer.plain`."""
        return self.renderer.plain(self.request, self.caller.actor, self.links, name, **values)

    def lead(self, *parts: str, **query: str) -> Response:
        """Return an answer that leads to another page."""
        return Response(status_code=303, headers={"location": self.links(*parts, **query)})


Page: TypeAlias = Callable[[Visit], Awaitable[Response]]
"""Answers a request for a page."""
