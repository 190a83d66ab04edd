"""The dashboard inside other programs and behind proxies: the check 3 of its acceptance. Nothing of it is in
a module.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from eventbus import EventProvider
from eventbus.dashboard import Dashboard

Make = Callable[..., EventProvider]
TOKEN = "a-token-that-nobody-guesses"


def _in_starlette(dashboard: Dashboard) -> Any:
    return Starlette(routes=[Mount("/ops/bus", app=dashboard)])


def _in_fastapi(dashboard: Dashboard) -> Any:
    app = FastAPI()
    app.mount("/ops/bus", dashboard)
    return app


class _Unsaid:
    """A host, as Litestar, that takes its prefix from the path and does not say so."""

    def __init__(self, app: Any, *, is_cut: bool) -> None:
        self._app, self._is_cut = app, is_cut

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self._is_cut:
            scope = {**scope, "path": scope["path"].removeprefix("/ops/bus") or "/"}
        await self._app(scope, receive, send)


def _cut(dashboard: Dashboard) -> Any:
    return _Unsaid(dashboard, is_cut=True)


def _whole(dashboard: Dashboard) -> Any:
    return _Unsaid(dashboard, is_cut=False)


@pytest.mark.parametrize(
    ("mount", "options"),
    [
        (_in_starlette, {}),
        (_in_fastapi, {}),
        (_in_starlette, {"base_path": "/ops/bus"}),
        (_cut, {"base_path": "/ops/bus"}),
        (_whole, {"base_path": "/ops/bus"}),
    ],
    ids=[
        "Starlette",
        "FastAPI",
        "Starlette and base_path",
        "a host that cuts the prefix",
        "one that does not",
    ],
)
@pytest.mark.parametrize("origin", ["http://localhost", "https://ops.example.com"])
async def test_check_3_links_forms_assets_and_redirects_are_right_where_it_is_mounted(
    make_provider: Make, mount: Callable[[Dashboard], Any], options: dict[str, Any], origin: str
) -> None:
    async with make_provider() as provider:
        await provider.pause("a")
        # A proxy ends TLS: the app itself sees http.
        app = mount(Dashboard(provider, token=TOKEN, public_origin=origin, **options))
        transport = httpx2.ASGITransport(app=app)
        headers = {"origin": origin, "host": origin.partition("//")[2]}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://inside", headers=headers
        ) as client:
            led = await client.get("/ops/bus/schedules/")
            assert led.headers["location"] == "/ops/bus/sign-in?next=%2Fops%2Fbus%2Fschedules"
            form = await client.get(led.headers["location"])
            assert 'action="/ops/bus/sign-in"' in form.text
            data = {"token": TOKEN, "next": "/ops/bus/schedules"}
            signed = await client.post("/ops/bus/sign-in", data=data)
            assert signed.headers["location"] == "/ops/bus/schedules"
            headers["cookie"] = signed.headers["set-cookie"].partition(";")[0]
            for path in (
                "/ops/bus/",
                "/ops/bus/queues/event.a",
                "/ops/bus/queues/event.a/",
                "/ops/bus/schedules",
            ):
                page = await client.get(path, headers=headers)
                assert page.status_code == 200, path
                urls = re.findall(r'(?:href|src|action|hx-get)="([^"#]+)"', page.text)
                assert len(urls) > 5
                assert [url for url in urls if not url.startswith("/ops/bus/")] == [], path
                for url in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
                    got = await client.get(url.replace("&amp;", "&"), headers=headers)
                    assert got.status_code == 200, url
            acted = await client.post("/ops/bus/queues/event.a/resume", data={"_once": "1"}, headers=headers)
            assert acted.headers["location"] == "/ops/bus/queues/event.a?done=changed"
            links = (await client.get("/ops/bus/api/v1", headers=headers)).json()["links"]
            assert links["queues"] == "/ops/bus/api/v1/queues"


async def test_two_dashboards_in_one_program_know_nothing_of_each_other(make_provider: Make) -> None:
    async with make_provider(prefix="one") as first, make_provider(prefix="two") as second:
        await first.pause("a")
        app = Starlette(
            routes=[
                Mount("/one", app=Dashboard(first, token=TOKEN)),
                Mount("/two", app=Dashboard(second, token=f"{TOKEN}-2", read_only=True)),
            ]
        )
        transport, headers = httpx2.ASGITransport(app=app), {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert "event.a" in (await client.get("/one/api/v1/queues", headers=headers)).text
            assert (await client.get("/two/api/v1/queues", headers=headers)).status_code == 401
            headers = {"authorization": f"Bearer {TOKEN}-2"}
            assert (await client.get("/two/api/v1/queues", headers=headers)).json()["queues"] == []
        await first.resume("a")


async def test_a_lifespan_and_a_websocket_are_answered(make_provider: Make) -> None:
    dashboard, sent = Dashboard(make_provider(), token=TOKEN), list[dict[str, Any]]()
    asked = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return asked.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await dashboard({"type": "lifespan"}, receive, send)
    await dashboard({"type": "websocket"}, receive, send)
    assert [each["type"] for each in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
    ]


def test_the_library_and_its_command_line_start_without_the_dashboard() -> None:
    program = (
        "import sys, eventbus, eventbus.cli.app; "
        "print([name for name in ('starlette', 'jinja2', 'uvicorn') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_without_its_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['starlette'] = None; import eventbus.dashboard"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in ran.stderr or "ImportError" in ran.stderr
    assert "pip install 'eventbus-workflows[dashboard]'" in ran.stderr
