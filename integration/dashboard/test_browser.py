"""The dashboard in a real browser: the checks of its acceptance that need one, each named by its number."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.async_playwright import Axe  # pyright: ignore[reportMissingTypeStubs]
from harness.browsing import wait_until
from harness.shop import TOKEN, Shop
from harness.watch import Watch

if TYPE_CHECKING:
    from playwright.async_api import Page

Open = Callable[..., Awaitable["Page"]]

_SERIOUS = ("serious", "critical")
_ALL = {"resultTypes": ["violations"]}
_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
"""All by which the themes differ."""


async def test_check_1_a_link_signs_in_once_and_the_address_bar_holds_no_code(
    shop: Shop, open_page: Open, watch: Watch
) -> None:
    page = await open_page(is_signed_in=False)
    assert page.url.startswith(f"{shop.url}/sign-in")
    code = shop.dashboard.make_code()
    await page.goto(f"/sign-in?code={code}")
    assert page.url == f"{shop.url}/"
    assert await page.title() == "Queues · eventbus"
    watch.expected = ("401",)  # also for what the page asks until it is left
    await page.click("text=Sign out")
    await page.goto(f"/sign-in?code={code}")
    assert "was used before" in await page.inner_text("main")
    assert code not in await page.inner_html("html")


@pytest.mark.parametrize(("theme", "rules"), [("light", _ALL), ("dark", _ALL | _COLOURS)])
async def test_check_4_no_page_has_an_error_a_violation_or_a_serious_flaw_in_either_theme(
    shop: Shop, open_page: Open, theme: str, rules: dict[str, Any]
) -> None:
    job_id, flow_id = await shop.fail("no money"), await shop.undo()
    await shop.provider.pause("paid", reason="the bank is away")
    await shop.provider.schedules.add("paid", id="nightly", cron="0 3 * * *", payload={})
    waiting = shop.provider.emit("paid", {})
    await waiting.enqueued()
    flow = flow_id
    paths = [
        "/",
        "/queues/event.paid?state=failed",
        f"/jobs/{job_id}",
        f"/jobs/{waiting.job_id}",
        "/flows",
        f"/flows/{flow}",
        "/schedules",
        "/schedules/nightly",
        "/failures",
        "/workers",
        "/events",
        "/events/paid",
        "/server",
        "/tail",
        "/find?q=order_id:7&queue=event.paid",
    ]
    page = await open_page(color_scheme=theme)
    for path in paths:
        await page.goto(path)
        for act in await page.query_selector_all(".act"):
            await act.evaluate("(act) => { act.open = true; }")
        found = await Axe().run(page, options=rules)
        wrong = [
            (each["id"], each["nodes"][0]["html"])
            for each in found.response["violations"]
            if each["impact"] in _SERIOUS
        ]
        assert wrong == [], (theme, path)
    signed_out = await open_page("/sign-in", is_signed_in=False, color_scheme=theme)
    found = await Axe().run(signed_out, options=rules)
    assert [each["id"] for each in found.response["violations"] if each["impact"] in _SERIOUS] == []


async def test_check_14_what_somebody_does_on_a_page_survives_its_changes(
    shop: Shop, open_page: Open, watch: Watch
) -> None:
    job_id = await shop.fail("no money")
    page = await open_page("/queues/event.paid?state=failed")
    await page.click("summary:has-text('Pause')")
    await page.fill("input[name=reason]", "half a sen")
    await page.focus(f"#job-{job_id} a")
    for n in range(6):
        await shop.fail(f"no money {n}")
        wanted = "(count) => document.querySelectorAll('tbody tr').length >= count"
        await wait_until(page, wanted, "the new job is listed", n + 2)
    assert await page.input_value("input[name=reason]") == "half a sen"
    assert await page.evaluate("document.querySelector('.act').open")
    assert await page.evaluate("document.activeElement.closest('tr')?.id") == f"job-{job_id}"

    await page.goto(f"/jobs/{job_id}")
    await page.click(".failure summary")
    await watch.wait_requests(3)
    assert await page.evaluate("document.querySelector('.failure').open")


async def test_check_14_five_thousand_changes_in_a_row_disturb_nobody(shop: Shop, open_page: Open) -> None:
    job_id = await shop.fail("no money")
    page = await open_page("/queues/event.paid?state=failed", viewport={"width": 700, "height": 400})
    await page.click("summary:has-text('Pause')")
    await page.fill("input[name=reason]", "half a sen")
    await page.fill("#q", "order_i")
    await page.evaluate(
        """(id) => {
          window.row = document.getElementById(id);
          const range = document.createRange();
          range.selectNodeContents(window.row.querySelector("code"));
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          window.scrollTo(0, 120);
        }""",
        f"job-{job_id}",
    )
    await page.check(f"#job-{job_id} input[type=checkbox]")
    await page.focus("#q")
    top = await page.evaluate("window.scrollY")
    before = (await shop.provider.inspector.queues.count("paid"))["completed"]
    first = await page.inner_text(".tabs")
    begin, sent = time.monotonic(), 0
    while sent < 1800:  # each job is added, claimed and completed: three changes
        sent += len(shop.provider.emit_many("paid", [{} for _ in range(20)], reply=False))
        await asyncio.sleep(max(0.0, begin + sent / 180 - time.monotonic()))  # 540 changes a second at most
    while (await shop.provider.inspector.queues.count("paid"))["completed"] < min(before + 900, 1000):
        pass
    await wait_until(
        page, "(first) => document.querySelector('.tabs').innerText !== first", "the page changes", first
    )
    assert await page.evaluate("window.row.isConnected"), "the row is the same one"
    assert await page.is_checked(f"#job-{job_id} input[type=checkbox]")
    assert await page.evaluate("getSelection().toString()") in (job_id, "")
    assert await page.evaluate("window.scrollY") == top
    assert await page.input_value("#q") == "order_i"
    assert await page.evaluate("document.activeElement.id") == "q"
    assert await page.input_value("input[name=reason]") == "half a sen"
    assert await page.evaluate("document.querySelector('.act').open")


async def test_check_14_no_request_is_made_while_paused_or_hidden(
    shop: Shop, open_page: Open, watch: Watch
) -> None:
    page = await open_page("/")

    async def asks() -> bool:
        seen = len(watch.requests)
        await page.wait_for_timeout(1600)  # three polls
        return len(watch.requests) > seen

    await watch.wait_requests(1)
    await page.click("#pause")
    assert await page.get_attribute("#pause", "aria-pressed") == "true"
    assert not await asks()
    await page.click("#pause")
    await watch.wait_requests(1)
    await page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    assert not await asks()


_HELD_ANSWER = """(part) => {
  const ask = window.fetch.bind(window);
  const gate = new Promise((open) => { window.goOn = open; });
  window.asked = new Promise((tell) => {
    window.fetch = async (...words) => {
      window.fetch = ask;
      const answer = await ask(...words);
      if (part === "body") {
        const text = await answer.text();
        answer.text = async () => { tell(); await gate; window.after = true; return text; };
      } else { tell(); await gate; window.after = true; }
      return answer;
    };
  });
}"""
"""Holds the next answer back before its head or its body. `asked` says when, `goOn()` ends it."""


@pytest.mark.parametrize("part", ["head", "body"])
async def test_check_14_an_answer_that_comes_after_the_pause_changes_nothing_until_it_goes_on(
    shop: Shop, open_page: Open, part: str
) -> None:
    """The server answered before the pause; nothing changes in it between the pause and the going on."""
    held = shop.provider.emit("held", 1)
    await held.enqueued()
    page = await open_page(f"/jobs/{held.job_id}")
    await page.click("#pause")
    shop.gate.set()
    await held
    await page.evaluate(_HELD_ANSWER, part)
    await page.click("#pause")
    await page.evaluate("window.asked")
    await page.click("#pause")
    before = await page.inner_text("#live")
    await page.evaluate("window.goOn()")
    await wait_until(page, "() => window.after", "the answer came")
    await page.evaluate("() => new Promise(requestAnimationFrame)")
    assert await page.inner_text("#live") == before
    await page.click("#pause")
    await wait_until(
        page, "(text) => document.getElementById('live').innerText !== text", "it goes on", before
    )


async def test_check_15_eight_tabs_load(shop: Shop, open_page: Open, watch: Watch) -> None:
    first = await open_page("/")
    tabs = [await first.context.new_page() for _ in range(7)]
    for tab in tabs:
        watch.follow(tab)
        await tab.goto("/schedules")
    for tab in tabs:
        assert await tab.title() == "Schedules · eventbus"


async def test_check_16_a_banner_says_that_the_server_is_away_and_goes_by_itself(
    shop: Shop, open_page: Open, watch: Watch
) -> None:
    await shop.fail("no money")
    watch.expected = ("503",)
    page = await open_page("/queues/event.paid?state=failed")
    assert await page.is_hidden("#stale")
    shown = await page.inner_text("tbody")
    await shop.provider.stop()
    await page.wait_for_selector("#stale:visible")
    assert await page.inner_text("tbody") == shown, "what was known stays"
    await page.click("summary:has-text('Pause')")
    await page.click("text=Pause the queue")
    assert "is not started" in await page.inner_text("main")
    await page.go_back()
    await shop.provider.start()
    await page.wait_for_selector("#stale", state="hidden")


async def test_check_21_a_foreign_page_neither_acts_nor_frames(
    shop: Shop, open_page: Open, watch: Watch
) -> None:
    watch.expected = ("evil.example", "401", "403", "frame", "Cross-Origin", "CORS", "net::ERR")
    page = await open_page("/")
    evil = (
        f'<form method=post action="{shop.url}/queues/event.paid/pause"><input name=reason value=x></form>\n'
        f'      <iframe src="{shop.url}/"></iframe>'
    )

    async def serve(route: Any) -> None:
        await route.fulfill(body=evil, content_type="text/html")

    await page.context.route("http://evil.example/**", serve)
    await page.goto("http://evil.example/")
    for frame in page.frames[1:]:
        assert "Queues" not in await frame.content()
    sent = await page.evaluate(
        "(url) => fetch(url, {method: 'POST', credentials: 'include', mode: 'no-cors'})"
        ".then(() => 1, () => 0)",
        f"{shop.url}/api/v1/queues/event.paid/pause",
    )
    assert sent in (0, 1)
    await page.evaluate("document.forms[0].submit()")
    await page.wait_for_timeout(500)
    assert not (await shop.provider.inspector.queues.controls("paid"))[0].is_paused


async def test_check_22_hostile_texts_run_nothing(shop: Shop, open_page: Open) -> None:
    texts = [
        "<img src=x onerror=\"document.title='hit'\">",
        "\"><script>document.title='hit'</script>",
        "{{7*7}}",
        "javascript:document.title='hit'",
        "\x1b[31mred \u202elive",
        "</pre><svg onload=\"document.title='hit'\">",
    ]
    page = await open_page("/")
    for text in texts:
        job_id = await shop.fail(text)
        await shop.provider.pause("paid", reason=text, by=text)
        for path in (f"/jobs/{job_id}", "/queues/event.paid?state=failed", "/"):
            await page.goto(path)
            assert await page.title() != "hit"
            assert await page.locator("main img, main script, main svg:not(.columns)").count() == 0
        await shop.provider.resume("paid")
    shown = await page.inner_text("body")
    assert "\u202e" not in shown
    assert "\x1b" not in shown


async def test_check_24_all_of_it_works_without_scripts(shop: Shop, open_page: Open) -> None:
    flow_id, job_id = await shop.undo(), await shop.fail("no money")
    await shop.provider.pause("paid")
    waiting = shop.provider.emit("paid", {}, reply=False)
    await waiting.enqueued()
    page = await open_page("/jobs/" + waiting.job_id, is_signed_in=False, java_script_enabled=False)
    await page.fill("input[name=token]", TOKEN)
    await page.click("text=Sign in >> nth=-1")
    assert page.url == f"{shop.url}/jobs/{waiting.job_id}", "it leads to what was asked for"
    assert "is paused" in await page.inner_text(".why")
    await page.click("summary:has-text('Cancel')")
    await page.fill(".act[open] input[name=reason]", "not wanted")
    await page.click("text=Cancel the job")
    assert "Done." in await page.inner_text(".notice")
    assert "cancelled" in await page.inner_text(".why")

    await page.fill("#q", job_id)
    await page.press("#q", "Enter")
    assert page.url == f"{shop.url}/jobs/{job_id}"
    await page.click("text=Flows")
    await page.select_option("select[name=state]", "failed")
    await page.click("text=Filter")
    await page.click(f"text={flow_id}")
    await page.click("summary:has-text('Retry')")
    await page.click("text=Begin run 2")
    assert "Done." in await page.inner_text(".notice")
    await shop.wait_for(flow_id, "failed")
    assert (await shop.flows.report(flow_id)).run == 2


async def test_check_24_a_keyboard_alone_is_enough_and_its_place_is_seen(shop: Shop, open_page: Open) -> None:
    await shop.fail("no money")
    page = await open_page("/queues/event.paid")
    seen: list[str] = []
    for _ in range(30):
        await page.keyboard.press("Tab")
        name, outline = await page.evaluate(
            "(() => { const e = document.activeElement; "
            "return [e.innerText || e.id || e.tagName, getComputedStyle(e).outlineStyle]; })()"
        )
        assert outline != "none", name
        seen.append(name)
        if name == "Pause…":
            break
    assert seen[0] == "Skip to the content"
    assert seen[-1] == "Pause…"
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.type("by keyboard")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".notice")
    (ordered,) = await shop.provider.inspector.queues.controls("paid")
    assert (ordered.reason, ordered.paused_by) == ("by keyboard", "local")


@pytest.mark.parametrize(
    "size", [{"width": 380, "height": 800}, {"width": 1600, "height": 900}], ids=["phone", "wide"]
)
async def test_no_page_is_wider_than_its_window(shop: Shop, open_page: Open, size: dict[str, int]) -> None:
    job_id, flow_id = await shop.fail("no" * 300), await shop.undo()
    page = await open_page(viewport=size)
    for path in ("/", "/queues/event.paid?state=failed", f"/jobs/{job_id}", f"/flows/{flow_id}"):
        await page.goto(path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"], path
    assert re.match(r"http://localhost:\d+/flows/", page.url)
