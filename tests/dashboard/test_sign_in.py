"""Who comes in: the checks 1 and 2 of the dashboard's acceptance, as far as they need no browser."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from eventbus import ConfigError, EventProvider, UsageError
from eventbus.dashboard import Actor, Dashboard
from eventbus.dashboard.entry import credentials
from eventbus.dashboard.entry.credentials import Credentials
from eventbus.model import clock

Open = Callable[..., Any]
TOKEN = "a-token-that-nobody-guesses"


def test_a_dashboard_that_nobody_closed_is_refused() -> None:
    with pytest.raises(ConfigError, match="give sign_in="):
        Dashboard(EventProvider("memory:"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": "short"}, "5 characters"),
        ({"token": ""}, "0 characters"),
        ({"insecure_allow_anyone": True, "token": TOKEN}, "without effect"),
        ({"token": TOKEN, "actions": {"*": {"job.remve": False}}}, "no action 'job.remve'"),
        ({"token": TOKEN, "actions": {"*": {"job.cancel": None}}}, "True, False or a role"),
        ({"token": TOKEN, "before": {"job.cancl": print}}, "no action 'job.cancl'"),
        ({"token": TOKEN, "after": {"job.cancl": print}}, "no action 'job.cancl'"),
        ({"token": TOKEN, "base_path": "ops"}, "base_path as /a/path"),
        ({"token": TOKEN, "base_path": "//evil.example"}, "base_path as /a/path"),
        ({"token": TOKEN, "public_origin": "ops.example.com"}, "public_origin as https"),
        ({"token": TOKEN, "trusted_proxies": ["proxy"]}, "trusted_proxies"),
        ({"token": TOKEN, "frame_ancestors": "*; script-src *"}, "frame_ancestors"),
    ],
)
def test_an_option_that_would_open_it_or_do_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        Dashboard(EventProvider("memory:"), **options)


async def test_check_1_a_link_signs_in_once_and_its_code_is_in_no_log(
    provider: EventProvider, open_dashboard: Open, logs: list[MutableMapping[str, Any]]
) -> None:
    client = open_dashboard(provider, one_time_codes=True)
    dashboard: Dashboard = client._transport.app
    code = dashboard.make_code()
    answer = await client.get("/sign-in", params={"code": code})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    assert (await client.get("/")).status_code == 200

    client.cookies.clear()
    again = await client.get("/sign-in", params={"code": code})
    assert again.status_code == 401
    assert "set-cookie" not in again.headers
    assert code not in str(logs)
    assert code not in again.text


async def test_a_code_is_void_after_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Credentials(None)
    code, now = known.make_code(), clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now + credentials.CODE_SECONDS + 1)
    assert not known.use_code(code)


def test_of_more_than_a_hundred_unused_codes_the_oldest_is_void() -> None:
    known = Credentials(None)
    codes = [known.make_code() for _ in range(101)]
    assert [known.use_code(code) for code in codes] == [False, *[True] * 100]


def test_a_dashboard_without_codes_makes_none() -> None:
    with pytest.raises(UsageError, match="one_time_codes=True"):
        Dashboard(EventProvider("memory:"), token=TOKEN).make_code()


_PATHS = ("/", "/queues/event.a", "/jobs/x", "/flows", "/schedules", "/find?q=1", "/nothing")


async def test_check_2_nothing_but_assets_and_the_form_is_answered_without_a_sign_in(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token=TOKEN)
    for path in _PATHS:
        page, data = await client.get(path), await client.get(f"/api/v1{path}")
        assert page.status_code == 303, path
        assert page.headers["location"].startswith("/sign-in"), path
        assert data.status_code == 401, path
        assert data.headers["content-type"] == "application/problem+json"
        assert (await client.post(path)).status_code == 401, path
        assert (await client.put(path)).status_code == 401, path
    form = await client.get("/sign-in")
    assert form.status_code == 200
    for asset in re.findall(r'"(/static/[^"]+)"', form.text):
        assert (await client.get(asset)).status_code == 200


async def test_check_2_a_token_signs_in_and_a_sign_out_ends_the_cookie(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token=TOKEN)
    answer = await client.post("/sign-in", data={"token": TOKEN, "next": "/schedules"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedules")
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    kept = dict(client.cookies)
    assert (await client.get("/")).status_code == 200

    left = await client.post("/sign-out")
    assert left.status_code == 303
    assert "Max-Age=0" in left.headers["set-cookie"]
    client.cookies.update(kept)  # whoever kept a copy of the cookie
    assert (await client.get("/")).status_code == 303


async def test_check_2_six_wrong_tokens_are_429_and_then_the_right_one_too(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_dashboard(provider, token=TOKEN)
    statuses = [(await client.post("/sign-in", data={"token": f"wrong-{n}"})).status_code for n in range(3)]
    headers = {"authorization": "Bearer wrong"}
    statuses += [(await client.get("/api/v1", headers=headers)).status_code for _ in range(3)]
    assert statuses == [401] * 5 + [429]
    refused = await client.post("/sign-in", data={"token": TOKEN})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0

    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now + 61)
    assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303


async def test_a_program_shows_the_token_and_needs_no_page(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token=TOKEN, headers={"authorization": f"Bearer {TOKEN}"})
    del client.headers["origin"]
    assert (await client.get("/api/v1")).json()["actor"] == "token"
    assert (await client.act("/queues/event.a/pause")).json()["changed"] is True


async def test_a_changed_cookie_is_nobodys(provider: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(provider, token=TOKEN)
    await client.post("/sign-in", data={"token": TOKEN})
    ((name, value),) = dict(client.cookies).items()
    last = "1" if value.endswith("0") else "0"
    for changed in (f"x{value}", f"{value[:-1]}{last}", value.partition(".")[0], "", "é", "." * 5000):
        client.cookies.clear()
        answer = await client.get("/", headers={"cookie": f"{name}={changed}".encode()})
        assert answer.status_code == 303, changed


async def test_a_session_ends_after_twelve_hours(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_dashboard(provider, token=TOKEN)
    await client.post("/sign-in", data={"token": TOKEN})
    cookies, now = dict(client.cookies), clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + 12 * 3600 + 1)
    header = "; ".join(f"{name}={value}" for name, value in cookies.items())
    assert (await client.get("/", headers={"cookie": header})).status_code == 303


@pytest.mark.parametrize(
    "following",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/\t/evil.example", "javascript:x"],
)
async def test_the_sign_in_leads_to_no_other_place(
    provider: EventProvider, open_dashboard: Open, following: str
) -> None:
    client = open_dashboard(provider, token=TOKEN)
    answer = await client.post("/sign-in", data={"token": TOKEN, "next": following})
    assert answer.headers["location"] == "/"


async def test_under_tls_the_cookie_is_bound_to_the_host(
    provider: EventProvider, open_dashboard: Open
) -> None:
    origin = "https://ops.example.com"
    client = open_dashboard(provider, token=TOKEN, public_origin=origin, headers={"origin": origin})
    cookie = (await client.post("/sign-in", data={"token": TOKEN})).headers["set-cookie"]
    assert cookie.startswith("__Host-")
    assert cookie.endswith("; Secure")


async def test_the_program_around_says_who_it_is(provider: EventProvider, open_dashboard: Open) -> None:
    async def current_user(request: Any) -> Actor | None:
        name = request.headers.get("x-user")
        return Actor(name) if name else None

    client = open_dashboard(provider, sign_in=current_user)
    assert (await client.get("/")).status_code == 401
    assert (await client.get("/sign-in")).status_code == 404
    assert "ada" in (await client.get("/", headers={"x-user": "ada"})).text


async def test_a_sign_in_that_answers_something_else_lets_nobody_in(
    provider: EventProvider, open_dashboard: Open, logs: list[MutableMapping[str, Any]]
) -> None:
    client = open_dashboard(provider, sign_in=lambda _request: "ada")
    answer = await client.get("/")
    assert answer.status_code == 500
    assert "TypeError" not in answer.text
    (logged,) = [each for each in logs if each["event"] == "dashboard request failed"]
    assert logged["request"] == answer.headers["x-request-id"]
    assert logged["request"] in answer.text


async def test_the_address_behind_a_trusted_proxy_counts(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token=TOKEN, trusted_proxies=["127.0.0.1"])
    for _ in range(6):
        await client.post(
            "/sign-in", data={"token": "wrong"}, headers={"x-forwarded-for": "6.6.6.6, 9.9.9.9"}
        )
    others = await client.post(
        "/sign-in", data={"token": TOKEN}, headers={"x-forwarded-for": "9.9.9.9, 7.7.7.7"}
    )
    assert others.status_code == 303


async def test_an_address_that_anybody_can_claim_does_not_count(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token=TOKEN)
    answers = [
        await client.post("/sign-in", data={"token": "wrong"}, headers={"x-forwarded-for": f"1.1.1.{n}"})
        for n in range(6)
    ]
    assert answers[-1].status_code == 429


async def test_check_21_a_foreign_page_does_not_use_up_the_tries_of_an_address(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token=TOKEN, one_time_codes=True)
    for _ in range(8):  # images of a foreign page, and a form that it posts
        assert (await client.get("/sign-in?code=wrong")).status_code == 401
        foreign = {"origin": "http://evil.example"}
        posted = await client.post("/sign-in", data={"token": "wrong"}, headers=foreign)
        assert posted.status_code == 403
    assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303


@pytest.mark.parametrize("status", [401, 403, 418, 429])
async def test_an_http_error_of_the_program_around_is_the_answer(
    provider: EventProvider, open_dashboard: Open, status: int
) -> None:
    def sign_in(_: Request) -> Actor | None:
        raise HTTPException(status, "ask at the desk", headers={"x-why": "desk"})

    client = open_dashboard(provider, sign_in=sign_in)
    told = await client.get("/api/v1/queues")
    assert (told.status_code, told.json()["detail"]) == (status, "ask at the desk")
    assert told.headers["x-why"] == "desk"
    page = await client.get("/")
    assert page.status_code == status
    assert "ask at the desk" in page.text


@pytest.mark.parametrize("secret", ["", "short", "x" * 31])
def test_a_secret_that_can_be_guessed_is_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"less than 32 bytes .* make one with python -c"):
        Dashboard(EventProvider("memory:"), token=TOKEN, secret=secret)
