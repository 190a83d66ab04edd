"""What is not to be seen, and what must not run: the checks 22 and 23 of the dashboard's acceptance, without
a browser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from contextlib import AsyncExitStack
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import eventbus.dashboard
from eventbus import Event, EventContext, EventProvider, Retry, Sensitive
from eventbus.dashboard.links import Links, part_of, text_of
from eventbus.dashboard.pages.visible import json_text, moment, span, visible
from workflows import FlowContext, StepContext, StepError, Workflow, WorkflowProvider, durable

Open = Callable[..., Any]
_HERE = Path(eventbus.dashboard.__file__).parent
CARD = "4111111111111111"


async def _fail(provider: EventProvider, stack: AsyncExitStack, *payloads: Any) -> list[str]:
    """Let jobs of event `paid` fail with the card of their payload in the error; return their ids."""

    @provider.on("paid", retry=Retry(attempts=1))
    async def pay(given: Any) -> None:
        raise ValueError(f"{given['card']} was refused: {given.get('text', '')}")

    await stack.enter_async_context(provider.worker())
    found: list[str] = []
    for payload in payloads:
        job = provider.emit("paid", payload, reply=False)
        await job.enqueued()
        while (await provider.inspector.jobs.get(job.job_id)).state != "failed":
            pass
        found.append(job.job_id)
    return found


async def test_check_23_a_secret_is_on_no_page_and_in_no_answer_until_it_is_revealed(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack, logs: list[MutableMapping[str, Any]]
) -> None:
    payload = {"card": CARD, "order": "o-1", "deep": [{"api_key": {"id": "hidden-id"}}]}
    (job_id,) = await _fail(provider, stack, payload)
    client = open_dashboard(provider)
    for path in (
        f"/jobs/{job_id}",
        "/queues/event.paid?state=failed",
        f"/api/v1/jobs/{job_id}",
        "/api/v1/queues/event.paid/jobs?state=failed",
    ):
        text = (await client.get(path)).text
        assert CARD not in text, path
        assert "hidden-id" not in text, path
        assert "was refused" in text, path
        assert "•••" in text, path
    assert "o-1" in (await client.get(f"/jobs/{job_id}")).text

    assert (await client.act(f"/jobs/{job_id}/reveal", reason=" ")).status_code == 422
    logs.clear()
    shown = await client.act(f"/jobs/{job_id}/reveal", reason="ticket 17")
    assert shown.json()["value"]["payload"] == payload
    page = await client.post(f"/jobs/{job_id}/reveal", data={"reason": "ticket 18"})
    assert CARD in page.text
    noted = [each["reason"] for each in logs if each["event"] == "dashboard action"]
    assert noted == ["ticket 17", "ticket 18"]
    assert CARD not in str([each for each in logs if each["event"] == "dashboard action"])


class _Payment(msgspec.Struct):
    order: str
    holder: Annotated[str, Sensitive()]


async def test_check_23_a_field_that_is_marked_is_hidden_until_it_is_revealed(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    paying = Workflow("paying", input=_Payment, retry=Retry(attempts=1))

    @paying.step()
    async def pay(ctx: StepContext[_Payment]) -> str:
        raise ValueError(f"{ctx.input.holder} was refused")

    flows.register(paying)
    async with provider, provider.worker():
        job = provider.emit(
            Event("marked", payload=_Payment), _Payment("o-1", "Ada Lovelace"), delay="1 hour"
        )
        await job.enqueued()
        flow = await flows.execute(paying, _Payment("o-2", "Ada Lovelace"))
        with pytest.raises(StepError):
            await flow.result()
        client = open_dashboard(provider, flows=flows, redact="none")
        for path in (f"/jobs/{job.job_id}", f"/jobs/{flow.id}", f"/flows/{flow.id}", "/flows"):
            for base in ("", "/api/v1"):
                text = (await client.get(base + path)).text
                assert "Ada" not in text, base + path
                assert "•••" in text, base + path
        shown = await client.act(f"/jobs/{job.job_id}/reveal", reason="ticket 17")
        assert shown.json()["value"]["payload"] == {"order": "o-1", "holder": "Ada Lovelace"}


async def test_check_23_what_is_shown_instead_of_a_secret_says_nothing_of_it(
    provider: EventProvider, open_dashboard: Open
) -> None:
    """Whoever may emit could try all values that a short secret may have, and compare."""
    client, dots = open_dashboard(provider), list[str]()
    for card in ([CARD, CARD], [CARD, "4222222222222"]):
        job = provider.emit("paid", {"card": card})
        await job.enqueued()
        dots += (await client.get(f"/api/v1/jobs/{job.job_id}")).json()["job"]["payload"]["card"]
    assert len(set(dots)) == 4


async def test_who_may_not_read_payloads_sees_neither_them_nor_what_errors_say_of_them(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    (job_id,) = await _fail(provider, stack, {"card": CARD, "text": "private words"})
    client = open_dashboard(provider, actions={"*": {"payload.read": False}})
    for path in (f"/api/v1/jobs/{job_id}", f"/jobs/{job_id}", "/queues/event.paid?state=failed"):
        text = (await client.get(path)).text
        assert CARD not in text, path
        assert "private words" not in text, path
    assert (await client.get(f"/api/v1/jobs/{job_id}")).json()["job"]["payload"] is None


async def test_redaction_is_by_name_by_a_function_or_of_all(
    provider: EventProvider, open_dashboard: Open
) -> None:
    job = provider.emit("paid", {"city": "Ulm", "password": "hunter2", "n": 5})
    await job.enqueued()

    async def see(redact: Any) -> dict[str, Any]:
        client = open_dashboard(provider, redact=redact)
        return (await client.get(f"/api/v1/jobs/{job.job_id}")).json()["job"]["payload"]

    assert (await see("none")) == {"city": "Ulm", "password": "hunter2", "n": 5}
    assert (await see("patterns"))["city"] == "Ulm"
    mine = await see(lambda event, field: (event, field) == ("paid", "city"))
    assert mine["city"].startswith("•••")
    assert mine["password"].startswith("•••")
    assert {name: value.split()[-1] for name, value in (await see("all")).items()} == {
        "city": "str",
        "password": "str",
        "n": "int",
    }


_HOSTILE = [
    '<img src=x onerror="alert(1)">',
    '"><script>alert(1)</script>',
    "{{7*7}}",
    "javascript:alert(1)",
    "\x1b[31mred\x1b[0m \u202eevil\u202c",
    "</pre></td><svg onload=alert(1)>",
]


class _Tags(HTMLParser):
    """Collects the tags of a page, and attributes that would run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if (
                name.startswith("on")
                or name == "style"
                or (name != "value" and (value or "").strip().lower().startswith("javascript:"))
            ):
                self.wrong.append(f"{tag} {name}={value}")


@pytest.mark.parametrize("text", _HOSTILE, ids=repr)
async def test_check_22_hostile_texts_are_shown_as_texts(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack, text: str
) -> None:
    client = open_dashboard(provider)
    harmless, given = {"card": "x", "text": "harmless"}, {"card": "x", "text": text, text: [text]}
    plain, job_id = await _fail(provider, stack, harmless, given)
    await provider.pause("paid", reason=text, by=text)
    await provider.schedules.add("paid", id="s", cron="0 0 1 1 *", payload=text)
    await provider.schedules.get("s").pause(text)
    pages = [
        (f"/jobs/{job_id}", f"/jobs/{plain}"),
        ("/queues/event.paid?state=failed", None),
        ("/", None),
        ("/schedules", None),
        ("/schedules/s", None),
    ]
    for path, like in pages:
        answer = await client.get(path)
        assert answer.status_code == 200
        found = _Tags(answer.text)
        assert found.wrong == [], path
        assert found.tags.count("img") == 0
        assert found.tags.count("script") == 3
        if like is not None:
            assert found.tags == _Tags((await client.get(like)).text).tags
        assert "\x1b" not in answer.text
        assert "\u202e" not in answer.text
        if text == "{{7*7}}":
            assert ">49<" not in answer.text


@pytest.mark.parametrize(
    "path", ["/queues/{}", "/jobs/{}", "/schedules/{}", "/flows/{}", "/find?q={}", "/{}"]
)
async def test_check_22_hostile_names_in_a_path_are_an_error_and_not_a_tag(
    provider: EventProvider, open_dashboard: Open, path: str
) -> None:
    client = open_dashboard(provider)
    for text in (*_HOSTILE, "a\x00b", "..", "%2e%2e", "!2", "a/b?<c>"):
        answer = await client.get(path.format(part_of(text)))
        assert answer.status_code in (200, 303, 404, 422), text
        assert _Tags(answer.text).wrong == []


async def test_check_22_a_large_and_a_deep_payload_are_cut(
    provider: EventProvider, open_dashboard: Open
) -> None:
    deep: Any = "end"
    for _ in range(95):  # the library takes 100 at most
        deep = [deep]
    large = provider.emit("a", {"text": "x" * 900_000})
    nested = provider.emit("a", {"deep": deep})
    for job in (large, nested):
        await job.enqueued()
    client = open_dashboard(provider)
    page = await client.get(f"/jobs/{large.job_id}")
    assert page.status_code == 200
    assert len(page.text) < 100_000
    assert "the API has them all" in page.text
    assert (await client.get(f"/jobs/{nested.job_id}")).status_code == 200


def test_no_template_takes_a_text_for_html() -> None:
    sources = [*_HERE.rglob("*.html"), *_HERE.rglob("*.py")]
    assert len(sources) > 30
    for path in sources:
        text = path.read_text()
        assert not re.search(r"\|\s*safe\b|Markup\(|autoescape\s+false|tojson", text), path
        assert not re.search(r"\bstyle=|\shx-on|\son[a-z]+=|hx-vals|<script>", text), path


def test_a_name_comes_back_from_a_path_as_it_was() -> None:
    for name in (
        "a/b",
        "~",
        "~0",
        "~1",
        "~2",
        ".",
        "..",
        ".a",
        "a?b#c&d=e",
        "x y",
        "é",
        "%2F",
        "a@b",
        "~2x",
        "/",
    ):
        part = part_of(name)
        assert "/" not in part
        assert not part.startswith(".")
        from urllib.parse import unquote

        assert text_of(unquote(part)) == name


def test_links_are_below_the_base() -> None:
    links = Links("/ops/bus/")
    assert links() == "/ops/bus/"
    assert (
        links("queues", "a/b?<c>", state="failed", cursor=None)
        == "/ops/bus/queues/a!1b%3F%3Cc%3E?state=failed"
    )


def test_texts_for_people() -> None:
    assert visible("a\u202eb\x07\ud800") == "a\\u{202e}b\\u{7}\\u{d800}"
    assert visible(None) == ""
    assert visible("x" * 70_000).endswith("(70000 characters)")
    assert json_text({"a": 1}) == '{\n  "a": 1\n}'
    assert json_text({"a": object()}).startswith('{\n  "a": "<object')
    assert moment(0) == "-"
    assert moment(10**18) == "1000000000000000000 ms"
    spans = [(1, 1), (1, 2), (1, 2501), (1, 90_001), (1, 7_260_001), (1, 90_000_001)]
    assert [span(*each) for each in spans] == ["0 ms", "1 ms", "2.5 s", "1 min 30 s", "2 h 1 min", "1 d 1 h"]
    assert span(0, 5) == "-"


@pytest.mark.parametrize("before", range(150, 200, 3))
async def test_no_part_of_a_secret_stands_where_the_error_of_a_group_was_cut(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack, before: int
) -> None:
    @provider.on("paid", retry=Retry(attempts=1))
    async def pay(given: Any) -> None:
        raise ValueError(f"{'x' * before} {given['secret']} {'y' * 600}")

    await stack.enter_async_context(provider.worker())
    job = provider.emit("paid", {"secret": "ZqKxWvJuHyGw"}, reply=False)
    await job.enqueued()
    while (await provider.inspector.jobs.get(job.job_id)).state != "failed":
        pass
    client = open_dashboard(provider)
    for path in ("/failures", "/api/v1/failures"):
        text = (await client.get(path)).text
        assert "xxxx" in text
        assert not re.search("xx [A-Z]", text)


async def test_check_23_progress_and_a_result_do_not_repeat_a_secret(
    provider: EventProvider, open_dashboard: Open
) -> None:
    @provider.on("paid")
    async def pay(given: Any, ctx: EventContext) -> str:
        await ctx.progress(f"charging {given['card']}")
        return f"charged {given['card']}"

    async with provider.worker():
        job = provider.emit("paid", {"card": CARD})
        await job
    for path in (f"/jobs/{job.job_id}", f"/api/v1/jobs/{job.job_id}"):
        text = (await open_dashboard(provider).get(path)).text
        assert (CARD in text, "charging •••" in text, "charged •••" in text) == (False, True, True), path


async def test_who_may_not_read_payloads_sees_no_input_output_and_state_of_a_flow(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)

    @durable("echo", state=str)
    async def echo(ctx: FlowContext[dict[str, str]]) -> dict[str, str]:
        ctx.state = "private"
        return ctx.input

    flows.register(echo)
    async with provider, provider.worker():
        flow = await flows.execute(echo, {"text": "private words", "card": CARD})
        await flow.result(240)
        kept = open_dashboard(provider, flows=flows, actions={"*": {"payload.read": False}})
        report = (await kept.get(f"/api/v1/flows/{flow.id}")).json()["tree"]["report"]
        assert (report["input"], report["output"], report["own_state"]) == (None, None, None)
        shown = (await open_dashboard(provider, flows=flows).get(f"/api/v1/flows/{flow.id}")).json()
        report = shown["tree"]["report"]
        assert report["input"]["text"] == report["output"]["text"] == "private words"
        assert CARD not in str(report)
