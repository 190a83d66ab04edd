"""The pages of flows in a real browser: the checks 10 to 13 of its acceptance, signals, and pages of
lists.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from apps.pages.undo_app import trip
from axe_playwright_python.async_playwright import Axe  # pyright: ignore[reportMissingTypeStubs]
from harness.backends import Backend
from harness.browsing import open_context, wait_until
from harness.conditions import until
from harness.programs import Program
from harness.shop import Shop, ask, serving
from harness.watch import Watch, count_calls

if TYPE_CHECKING:
    from playwright.async_api import Page, Response, Route

Open = Callable[..., Awaitable["Page"]]

_NODES = """() => [...document.querySelectorAll('#graph g.node')].map((node) => {
  const [name, second] = node.querySelectorAll('text');
  return [name.textContent, [...node.classList], second.textContent];
})"""


async def _wait_drawn(page: Page, count: int) -> None:
    await wait_until(
        page, "(n) => document.querySelectorAll('#graph g.node').length === n", f"{count} nodes", count
    )


async def _table(page: Page) -> dict[str, str]:
    """The state of each step as the table of the flow says, without those of nested flows."""
    rows = await page.evaluate("""() => [...document.querySelectorAll('#live > .wide tbody tr')].map((row) =>
      [row.querySelector('th').innerText, [...row.querySelectorAll('.state')].at(-1).innerText])""")
    return dict(rows)


async def _times(page: Page) -> dict[str, str]:
    """The state of each bar of the drawing of times."""
    titles = await page.evaluate(
        "() => [...document.querySelectorAll('rect.bar title')].map((t) => t.textContent)"
    )
    return dict(title.split(",")[0].split(": ") for title in titles)


async def _graph(page: Page) -> Counter[str]:
    """How many parts are in each state, as the nodes of the graph say."""
    states: Counter[str] = Counter()
    for _name, classes, second in await page.evaluate(_NODES):
        if "many" in classes:
            for part in second.split(", "):
                count, _, state = part.partition(" ")
                states[state] += int(count)
        else:
            states[second] += 1
    return states


async def test_check_10_graph_table_and_times_agree_and_change_without_a_reload(
    shop: Shop, open_page: Open
) -> None:
    shop.fate = {"risky": True}
    flow = await shop.flows.execute(shop.wide, 1)
    page = await open_page(f"/flows/{flow.id}")
    await _wait_drawn(page, 5)
    await page.evaluate("window.isSame = true; window.first = document.querySelector('#graph svg')")
    await wait_until(
        page,
        "() => document.querySelector('#graph .many')?.textContent.includes('50 completed')",
        "fifty parts have ended in the graph",
    )
    nodes = {name: (classes, second) for name, classes, second in await page.evaluate(_NODES)}
    assert nodes.keys() == {"begin", "part-*", "inner", "risky", "end"}
    assert "active" in nodes["risky"][0]
    shop.gate.set()
    await wait_until(
        page, "() => document.querySelector('#graph .risky, #graph .failed')", "the failed step is seen"
    )
    await shop.wait_for(flow.id, "failed")
    await wait_until(
        page, "() => document.querySelector('#live .state').innerText === 'failed'", "the flow has failed"
    )
    assert await page.evaluate("window.isSame && window.first === document.querySelector('#graph svg')")
    table, times, graph = await _table(page), await _times(page), await _graph(page)
    assert Counter(table.values()) == {"undone": 52, "failed": 1, "cancelled": 1}
    assert graph == Counter(table.values())
    assert times == {name: state for name, state in table.items() if name in times}
    assert table.keys() - times.keys() == {"end"}
    link = page.locator("#graph a")
    assert await link.locator("text").first.text_content() == "inner"
    await link.click()
    await _wait_drawn(page, 1)
    assert await page.evaluate(_NODES) == [["inside", ["node", "step", "undone"], "undone"]]
    assert await page.locator("ol.rollbacks li").all_inner_texts() == ["undone inside"]
    assert "The flow around it has undone it." in await page.inner_text("main")


async def test_check_10_the_graph_has_no_serious_flaw_in_either_theme(shop: Shop, open_page: Open) -> None:
    shop.gate.set()
    shop.fate = {"risky": True, "undo begin": True}
    flow = await shop.flows.execute(shop.wide, 1)
    await shop.wait_for(flow.id, "failed")
    waiting = await shop.flows.execute(ask, 1)
    for theme in ("light", "dark"):
        page = await open_page(f"/flows/{flow.id}", color_scheme=theme)
        await _wait_drawn(page, 5)
        found = [(await Axe().run(page)).response["violations"]]
        for path in ("/flows", f"/flows/{waiting.id}"):
            await page.goto(path)
            for act in await page.query_selector_all(".act"):
                await act.evaluate("(act) => { act.open = true; }")
            found.append((await Axe().run(page)).response["violations"])
        wrong = [each for page in found for each in page if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in wrong] == []


async def test_check_11_rollbacks_stand_in_their_order_with_the_one_that_failed(
    shop: Shop, open_page: Open
) -> None:
    shop.gate.set()
    shop.fate = {"end": True, "undo begin": True}
    flow = await shop.flows.execute(shop.wide, 1)
    await shop.wait_for(flow.id, "failed")
    page = await open_page(f"/flows/{flow.id}")
    told = await page.locator("ol.rollbacks li").all_inner_texts()
    undone = [each.removeprefix("undo ") for each in shop.ran if each.startswith("undo ")]
    assert [line.split(maxsplit=1)[1].split(":")[0].rpartition("/")[2] for line in told] == undone
    assert told[-1].startswith("failed begin: ")
    assert "begin cannot be undone" in told[-1]
    assert all(line.startswith("undone ") for line in told[:-1])
    assert (await _table(page))["begin"] == "undo failed"
    await _wait_drawn(page, 5)
    nodes = {name: classes for name, classes, _ in await page.evaluate(_NODES)}
    assert "undo_failed" in nodes["begin"]
    assert "undone" in nodes["risky"]


@pytest.mark.servers("one")
async def test_check_11_a_rollback_goes_on_after_a_kill_and_undoes_nothing_twice(
    server: Backend, run: Callable[..., Program], tmp_path: Path, browser: Any, gates: Callable[[str], None]
) -> None:
    shop = Shop(server.url)
    shop.flows.register(trip)
    watch = Watch("")

    def start() -> Program:
        worker = run("worker", "apps.pages.undo_app:provider", url=server.url, lease="1s")
        worker.wait_logged("worker ready")
        return worker

    def written() -> list[str]:
        file = tmp_path / "undone"
        return file.read_text().splitlines() if file.exists() else []

    async with shop.provider, serving(shop):
        watch.origin = shop.url
        worker = start()
        flow = await shop.flows.execute(trip, 1)
        page = await (await open_context(browser, base_url=shop.url)).new_page()
        watch.follow(page)
        await page.goto(f"/sign-in?code={shop.dashboard.make_code()}")
        await page.goto(f"/flows/{flow.id}")
        await page.evaluate("window.isSame = true")
        await wait_until(
            page, "() => document.querySelectorAll('ol.rollbacks li').length === 1", "one rollback has ended"
        )
        await until("the second rollback has begun", lambda: "begin second" in written())
        worker.process.kill()
        worker.process.wait()
        assert await page.locator("#live .state").first.inner_text() == "rolling back"
        gates("go-on")
        start()
        await wait_until(
            page, "() => document.querySelector('#live .state').innerText === 'failed'", "it went on"
        )
        assert await page.evaluate("window.isSame")
        told = await page.locator("ol.rollbacks li").all_inner_texts()
        assert told == ["undone third", "undone second", "undone first"]
        await page.context.close()
    assert watch.wrong == []
    lines = written()
    assert [line for line in lines if line.startswith("end")] == ["end third", "end second", "end first"]
    assert Counter(lines)["begin third"] == Counter(lines)["begin first"] == 1


async def test_check_12_the_retry_form_names_what_is_kept_and_exactly_that_happens_once_for_two_tabs(
    shop: Shop, open_page: Open, watch: Watch
) -> None:
    shop.gate.set()
    shop.fate = {"risky": True, "undo begin": True, "undo part-7": True}
    flow = await shop.flows.execute(shop.wide, 1)
    await shop.wait_for(flow.id, "failed")
    first = await open_page(f"/flows/{flow.id}")
    second = await first.context.new_page()
    watch.follow(second)
    watch.expected = ("412", "409")
    await second.goto(f"/flows/{flow.id}")
    for page in (first, second):
        await page.click("summary:has-text('Retry')")
        kept, again = await page.locator(".act[open] p b").all_inner_texts()
        assert set(kept.split(", ")) == {"begin", "part-7"}
        assert set(again.split(", ")) == {
            "inner",
            "risky",
            "end",
            *(f"part-{n}" for n in range(50) if n != 7),
        }
    shop.ran.clear()
    shop.fate.clear()
    await asyncio.gather(first.dblclick("text=Begin run 2"), second.click("text=Begin run 2"))
    await shop.wait_for(flow.id, "completed")
    assert Counter(shop.ran) == Counter(["inside" if name == "inner" else name for name in again.split(", ")])
    assert (await shop.flows.report(flow.id)).run == 2
    texts = [await page.inner_text("main") for page in (first, second)]
    assert any("Done." in text for text in texts)


async def test_check_13_of_a_thousand_steps_the_browser_gets_a_hundred_and_two_nodes(
    shop: Shop, open_page: Open
) -> None:
    flow = await shop.flows.execute(shop.long, 1)
    await shop.at_gate.wait()
    page = await open_page("/flows")
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))  # noqa: PLW0108  (no method of a list)
    await page.goto(f"/flows/{flow.id}")
    await _wait_drawn(page, 2)
    nodes = {name: (classes, second) for name, classes, second in await page.evaluate(_NODES)}
    assert nodes["work-*"][1] == "999 completed"
    shop.gate.set()
    await wait_until(
        page, "() => document.querySelector('#live .state').innerText === 'completed'", "it changes live"
    )
    # An answer "not modified" has no bytes.
    sizes = [len(await each.body()) for each in answers if flow.id in each.url and each.ok]
    assert len(sizes) >= 2, "the page, and a change of it"
    assert max(sizes) < 150_000, "bytes"
    assert await page.locator("#live tbody tr").count() == 100
    assert await page.evaluate("document.querySelectorAll('*').length") < 4000
    assert "Page 1 of 10" in await page.inner_text("#live")
    for number in range(2, 11):
        await page.click("text=Steps after")
        await wait_until(page, "(n) => location.search.includes(`steps=${n}`)", "the next page", number)
    rows = await page.locator("#live tbody th").all_inner_texts()
    assert rows == [*(f"work-{n}" for n in range(900, 999)), "risky"]


async def test_check_13_a_layout_of_three_hundred_nodes_holds_nothing_up(shop: Shop, open_page: Open) -> None:
    page = await open_page("/flows")
    flow = await shop.flows.execute(shop.checkout, 1)
    names = [f"{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}{chr(97 + n // 7 % 26)}" for n in range(300)]
    nodes = [
        [f"{name}-{chr(97 + n % 26)}", "step", "completed", "completed", name, ""]
        for n, name in enumerate(names)
    ]
    edges = [[n // 2, n] for n in range(1, 300)] + [[n // 3, n] for n in range(3, 300)]
    given = json.dumps({"nodes": nodes, "edges": edges})
    await page.goto(f"/flows/{flow.id}")

    async with count_calls(page) as calls:
        for is_paused in (False, True):
            if is_paused:
                await page.click("#pause")
            await page.evaluate(
                "(data) => document.getElementById('graph').setAttribute('data-graph', data)", given
            )
        await _wait_drawn(page, 300)
    assert not any("dagre" in name for name in calls), "a worker lays it out"
    assert sum(count for name, count in calls.items() if name.startswith("graph.")) < 50 * len(nodes)
    assert await page.locator("#graph path[marker-end]").count() == len(edges)


async def test_check_13_a_page_is_usable_while_its_graph_is_laid_out(shop: Shop, open_page: Open) -> None:
    page = await open_page("/flows")
    flow = await shop.flows.execute(shop.checkout, 1)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await go_on.wait()
        await route.continue_()

    await page.context.route("**/*dagre*", hold)  # the worker stands still until it has this script
    await page.goto(f"/flows/{flow.id}")
    await asked.wait()
    await page.click("#pause")
    assert await page.get_attribute("#pause", "aria-pressed") == "true"
    assert await page.locator("#graph g.node").count() == 0
    go_on.set()
    await wait_until(page, "() => document.querySelectorAll('#graph g.node').length > 0", "it is drawn")


async def test_a_signal_is_sent_from_the_page_of_its_flow_and_one_that_does_not_fit_is_refused(
    shop: Shop, open_page: Open, watch: Watch
) -> None:
    flow = await shop.flows.execute(ask, 1)
    page = await open_page("/flows")
    while not await shop.flows.waits(flow.id):
        pass
    await page.goto(f"/flows/{flow.id}")
    assert "Waits for signal approval" in await page.inner_text(".waits")
    watch.expected = ("422",)
    await page.click("summary:has-text('Signal approval')")
    await page.fill("textarea[name=text]", '"seven"')
    await page.click("text=Send the signal")
    assert "Expected `int`, got `str`" in await page.inner_text("main")
    await page.goto(f"/flows/{flow.id}")
    await page.click("summary:has-text('Signal approval')")
    await page.fill("textarea[name=text]", "7")
    await page.click("text=Send the signal")
    assert "Done." in await page.inner_text(".notice")
    assert await flow.result() == 7
    await wait_until(
        page, "() => document.querySelector('#live .state').innerText === 'completed'", "it goes on"
    )
    assert await page.locator(".waits").count() == 0


async def test_hostile_names_in_a_graph_are_texts(shop: Shop, open_page: Open) -> None:
    flow = await shop.flows.execute(shop.checkout, 1)
    page = await open_page(f"/flows/{flow.id}")
    await page.click("#pause")
    evil = "</text><image href=x onerror=\"document.title='hit'\">"
    data = {"nodes": [[evil, "step", "failed", evil, evil, ""]], "edges": []}
    await page.evaluate(
        "(data) => document.getElementById('graph').setAttribute('data-graph', data)", json.dumps(data)
    )
    await _wait_drawn(page, 1)
    assert await page.locator("#graph image").count() == 0
    assert await page.locator("#graph text").first.text_content() == evil
    assert await page.title() != "hit"


async def test_the_places_of_a_machine_are_drawn_with_the_names_of_its_transitions(
    shop: Shop, open_page: Open
) -> None:
    flow = await shop.flows.execute(shop.checkout, 1)
    page = await open_page(f"/flows/{flow.id}")
    await page.click("#pause")
    nodes = [
        ["draft", "place", "", "start", "draft: start", ""],
        ["waiting", "place", "stands_here", "stands here", "waiting: stands here", ""],
        ["broken", "error_place", "", "error place", "broken: error place", ""],
    ]
    edges = [
        [0, 1, "write", ""],
        [1, 0, "send_back (trigger)", ""],
        [1, 0, "again (trigger)", ""],
        [1, 1, "remind (trigger)", ""],
        [0, 2, "write, on error", "error"],
    ]
    given = json.dumps({"nodes": nodes, "edges": edges})
    await page.evaluate("(data) => document.getElementById('graph').setAttribute('data-graph', data)", given)
    await _wait_drawn(page, 3)
    assert await page.locator("#graph text.label").all_text_contents() == [edge[2] for edge in edges]
    assert await page.locator("#graph path[marker-end]").count() == 5
    assert await page.locator("#graph path.error").count() == 1
    assert await page.locator("#graph .stands_here text").last.text_content() == "stands here"
