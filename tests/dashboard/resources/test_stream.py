"""The stream of changes over HTTP: slices, rights, secrets, and going on without a gap. Check 15's part
without a browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import msgspec
import pytest

from eventbus import EventProvider, Retry
from eventbus.dashboard import Actor
from eventbus.dashboard.api import stream
from eventbus.dashboard.desk import tail
from eventbus.dashboard.entry.tail_limit import MOST_TAILS

Open = Callable[..., Any]


def _read(text: str) -> list[tuple[str, str, Any]]:
    """Return the events of a slice: id, kind, what it holds."""
    events: list[tuple[str, str, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            events.append((fields["id"], fields["event"], msgspec.json.decode(fields["data"])))
    return events


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices end soon."""
    monkeypatch.setattr(tail, "SLICE_SECONDS", 0.3)


async def test_check_15_slices_tell_each_change_once_also_of_between_them(
    short: None, provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    answer = await client.get("/api/v1/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    ((last, kind, told),) = _read(answer.text)
    assert (kind, told) == ("slice", {"since": last})
    sent: list[str] = []
    seen: list[str] = []
    for turn in range(3):
        for _ in range(3):
            job = provider.emit("paid", turn, reply=False)
            await job.enqueued()
            sent.append(job.job_id)
        answer = await client.get("/api/v1/stream", headers={"last-event-id": last})
        *changes, (last, kind, _) = _read(answer.text)
        assert kind == "slice"
        assert {change["what"] for _, _, change in changes} == {"added"}
        assert [key for key, _, _ in changes] == [change["position"] for _, _, change in changes]
        seen += [change["job_id"] for _, _, change in changes]
    assert seen == sent


async def test_a_gap_is_told_as_missed(short: None, provider: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(provider)
    await client.get("/api/v1/stream")
    (first, *_) = _read((await client.get("/api/v1/stream", params={"since": "1"})).text)
    assert first[2]["what"] == "missed"
    answer = await client.get("/api/v1/stream", params={"since": "no"})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


async def test_a_stream_of_one_event_tells_no_other_and_loses_nothing_by_them(
    short: None, provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    ((last, _, _),) = _read((await client.get("/api/v1/stream?event=paid")).text)
    for event in ("paid", "shipped", "paid"):
        await provider.emit(event, 1, reply=False).enqueued()
    *changes, (reached, _, _) = _read((await client.get(f"/api/v1/stream?event=paid&since={last}")).text)
    assert {change["queue"] for _, _, change in changes} == {"event.paid"}
    assert len(changes) == 2
    assert int(reached) >= int(changes[-1][0])
    answer = await client.get("/api/v1/stream?event=paid&queue=event.paid")
    assert answer.status_code == 422


async def test_check_19_a_hidden_queue_is_in_no_tail(
    short: None, provider: EventProvider, open_dashboard: Open
) -> None:
    actions = {"payout": {"queue.read": "admin"}, "refund": {"job.read": "admin"}}
    viewer = open_dashboard(provider, sign_in=lambda _: Actor("viewer"), actions=actions)
    admin = open_dashboard(provider, sign_in=lambda _: Actor("a", frozenset({"admin"})), actions=actions)
    ((last, _, _),) = _read((await viewer.get("/api/v1/stream")).text)
    for event in ("paid", "payout", "refund"):
        await provider.emit(event, 1, reply=False).enqueued()
    await provider.pause("payout", reason="secret plans")
    await provider.pause("refund")
    told = (await viewer.get("/api/v1/stream", headers={"last-event-id": last})).text
    assert "payout" not in told
    assert [(change["what"], change["queue"]) for _, kind, change in _read(told) if kind == "change"] == [
        ("added", "event.paid"),
        ("paused", "event.refund"),
    ]
    page = (await viewer.get("/tail")).text
    assert "payout" not in page
    assert "event.paid" in page
    assert (await viewer.get("/api/v1/stream?event=payout")).status_code == 404
    assert (await viewer.get("/tail?event=payout")).status_code == 404
    assert "secret plans" in (await admin.get("/api/v1/stream", headers={"last-event-id": last})).text


async def test_check_23_a_secret_that_an_error_repeats_is_in_no_tail(
    short: None, provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)

    @provider.on("paid", retry=Retry(attempts=1))
    async def pay(payload: dict[str, str]) -> None:
        raise ValueError("x" * 190 + payload["card"])

    ((last, _, _),) = _read((await client.get("/api/v1/stream")).text)
    async with provider.worker():
        job = provider.emit("paid", {"card": "4111111111111111"}, reply=False)
        await job.enqueued()
        while (await provider.inspector.jobs.get(job.job_id)).state != "failed":
            pass
        told = (await client.get("/api/v1/stream", headers={"last-event-id": last})).text
    (failed,) = [change for _, kind, change in _read(told) if kind == "change" and change["what"] == "failed"]
    assert failed["note"] == "ValueError"
    assert "xxx" not in told
    assert "4111111111111111"[:9] not in told
    assert "xxx" not in (await client.get("/tail")).text


async def test_too_many_streams_are_refused_and_one_that_ends_frees_its_place(
    short: None, provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    answers = await asyncio.gather(*(client.get("/api/v1/stream") for _ in range(MOST_TAILS + 5)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200] * MOST_TAILS + [429] * 5
    assert (await client.get("/api/v1/stream")).status_code == 200
    assert (await client.head("/api/v1/stream")).text == ""
    assert (await client.get("/api/v1/stream")).status_code == 200


async def test_who_leaves_frees_the_place_at_once(provider: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(provider)
    tails = client._transport.app._desk.tails
    looking = asyncio.create_task(client.get("/api/v1/stream"))
    while not tails._taken:  # noqa: ASYNC110  (nobody tells)
        await asyncio.sleep(0)
    looking.cancel()
    await asyncio.wait([looking])
    assert not tails._taken


async def test_who_takes_nothing_is_cut_off_and_frees_the_place(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a laptop that sleeps: its connection stands, and nothing more goes through it."""
    monkeypatch.setattr(stream, "_SLOWEST", 0.3)
    app = open_dashboard(provider)._transport.app
    sent: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.sleep(3600)

    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/stream", "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("localhost", 80),
    }  # fmt: skip
    async with asyncio.timeout(240):
        await app(scope, receive, send)
    assert sent == ["http.response.start", "http.response.body"]
    assert not app._desk.tails._taken


async def test_nothing_is_told_while_nobody_looks_and_a_provider_that_is_not_started_says_so(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    await provider.emit("paid", 1, reply=False).enqueued()
    page = (await client.get("/tail")).text
    assert "event.paid" not in page, "nobody looked, so nothing was written"
    await provider.emit("paid", 1, reply=False).enqueued()
    page = (await client.get("/tail")).text
    assert page.count('<tr class="change">') == 1, "it is told from the first look on"
    await provider.stop()
    for path in ("/api/v1/stream", "/tail"):
        assert (await client.get(path)).status_code == 503


@pytest.mark.parametrize("kind", ["watched", "changes"])
async def test_a_damaged_key_of_the_watch_is_told(
    provider: EventProvider, open_dashboard: Open, admin: Callable[..., Any], prefix: str, kind: str
) -> None:
    """A browser would try again for ever after a 503."""
    client = open_dashboard(provider)
    key = f"{prefix}:2:{{0}}:{kind}"
    assert (await client.get("/tail")).status_code == 200
    admin("DEL", key)
    admin("SADD", key, "x")
    page = await client.get("/tail")
    assert page.status_code == 200
    assert "the changes cannot be read" in page.text
    assert "tail.js" not in page.text
    if kind == "watched":
        answer = await client.get("/api/v1/stream")
        assert (answer.status_code, answer.json()["title"]) == (409, "not possible in this state")
    admin("DEL", key)
    assert "the changes cannot be read" not in (await client.get("/tail")).text
