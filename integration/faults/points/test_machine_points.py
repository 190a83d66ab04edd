"""Each crash window of a flow of a state machine, by the name that the package `workflows.machines` gives it.

Its worker is killed with SIGKILL at a named point, and another process goes on. A body may run twice only if
it died before its move was recorded, and then with the same key; nothing that it did in vain is there.
Effects are told by a file outside of the server.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from apps.handlers.machine_app import Cutting, Draft, Part, Review, Toggle
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When
from harness.sites import LEASE

from eventbus import EventProvider, SignalRefused
from workflows import FlowCancelled, FlowHandle, FlowTimeout, WorkflowProvider

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")

_APP = "apps.handlers.machine_app:provider"
_BODIES = ("prepare", "approve", "part 1", "part 2", "collect", "publish")


class Window(NamedTuple):
    """Where the worker dies, the moves that are recorded then, and the body that runs twice by that. `broken`
    one fails.
    """

    name: str
    when: str
    where: str
    moves: int
    twice: str = ""
    broken: str = ""

    def __str__(self) -> str:
        return f"{self.name}-{self.when}-{self.where.replace(' ', '-')}"

    @property
    def is_behind_trigger(self) -> bool:
        return self.moves > 1 or self.where in ("append 1", "approve")


_WINDOWS = [
    Window("dies-in-transition", "in", "prepare", 0),
    Window("dies-in-transition", "before", "append 0", 0, "prepare"),
    Window("moved-not-answered", "after", "append 0", 1),
    Window("moved-then-dies-before-wait", "before", "suspended review", 1),
    Window("moved-then-dies-before-wait", "after", "suspended review", 1),
    Window("dies-in-transition", "in", "approve", 1),
    Window("child-ends-before-move-is-saved", "before", "append 1", 1, "approve"),
    Window("recorded-not-added", "after", "append 1", 2),
    Window("dies-in-transition", "in", "collect", 2),
    Window("moved-not-answered", "before", "append 2", 2, "collect"),
    Window("moved-not-answered", "after", "append 3", 4),
    Window("moved-not-answered", "before", "completed review", 4),
    Window("error-place-not-saved", "in", "prepare", 0, broken="prepare"),
    Window("error-place-not-saved", "before", "append 0", 0, "prepare", broken="prepare"),
    Window("error-place-not-saved", "after", "append 0", 1, broken="prepare"),
]

_QUICK = ("prepare", "suspended review", "append 0", "append 1", "completed review")
"""`tox -e faults` has the other points too."""


def open_flows(provider: EventProvider) -> WorkflowProvider:
    flows = WorkflowProvider(provider)
    for machine in (Cutting, Part, Review, Toggle):
        flows.register(machine)
    return flows


async def version_of(flow: FlowHandle[Any]) -> int:
    machine = (await flow.report()).machine
    assert machine is not None
    return machine.version


async def wait_rest(server: Backend, flow: FlowHandle[Any], worker: Program) -> None:
    await until(
        "the machine rests",
        lambda: Audit(server).jobs[flow.id].state == "waiting-children",
        story=worker.story,
    )


async def wait_at(server: Backend, flow: FlowHandle[Any], place: str, worker: Program) -> None:
    while True:
        await wait_rest(server, flow, worker)
        machine = (await flow.report()).machine
        if machine is not None and machine.place == place:
            return


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(each, id=str(each), marks=() if each.where in _QUICK else pytest.mark.long)
        for each in _WINDOWS
    ],
)
async def test_a_machine_goes_on_behind_its_last_move_whose_worker_dies_in_any_window(
    window: Window, server: Backend, proxy: Proxy, run: Run, journal: Journal, tmp_path: Path
) -> None:
    dead: list[Program] = []
    async with EventProvider(server.url, lease=LEASE) as provider:
        flow = await open_flows(provider).execute(Review, Draft(breaks=window.broken))
        if window.when == "in":
            (tmp_path / f"die in {window.where}").touch()
        else:
            moment: When = "before" if window.when == "before" else "after"
            proxy.strike(window.where, moment, lambda: [each.kill() for each in dead])
        dead.append(run("worker", _APP, url=proxy.url, lease=LEASE))
        if window.is_behind_trigger:
            await wait_at(server, flow, "waiting", dead[0])
            await flow.trigger(Review.approve, True)
        await until("it is dead", lambda: dead[0].has_ended, story=dead[0].story)
        assert await version_of(flow) == window.moves
        heir = run("worker", _APP, url=server.url, lease=LEASE)
        if not window.is_behind_trigger:
            await wait_at(server, flow, "waiting", heir)
            await flow.trigger(Review.approve, True)
        bodies = ["mend" if each == "prepare" and window.broken else each for each in _BODIES]
        done = [each for each in bodies if not each.startswith("part")]
        assert await flow.result(240) == done
        assert await version_of(flow) == len(done) + bool(window.broken)
        report = (await flow.report()).machine
    assert report is not None
    assert ("summary" in report.documents) == (not window.broken)
    ran = Counter(
        [*bodies, *([window.broken] if window.broken else []), *([window.twice] if window.twice else [])]
    )
    assert Counter(each.payload for each in journal.read("did")) == ran
    keys: dict[str, set[str]] = {}
    for each in journal.read("began"):
        keys.setdefault(each.payload, set()).add(each.job)
    assert {name: len(found) for name, found in keys.items()} == dict.fromkeys(ran, 1), "one key each"
    assert [each for each in heir.complaints() if each["event"] != "transition failed"] == []


async def test_moved_not_answered_a_move_whose_answer_is_lost_is_known_by_its_place(
    server: Backend, proxy: Proxy, run: Run, journal: Journal
) -> None:
    async with EventProvider(server.url, lease=LEASE) as provider:
        flow = await open_flows(provider).execute(Review, Draft())
        proxy.cut("turn", every=2)
        worker = run("worker", _APP, url=proxy.url, lease=LEASE)
        await wait_at(server, flow, "waiting", worker)
        await flow.trigger(Review.approve, True)
        assert await flow.result(240) == ["prepare", "approve", "collect", "publish"]
        assert await version_of(flow) == 4
    assert proxy.cuts["turn"] > 3
    assert Counter(each.payload for each in journal.read("did")) == Counter(_BODIES)


async def test_trigger_meets_move_each_trigger_that_was_taken_fires_once_and_others_are_refused(
    server: Backend, run: Run
) -> None:
    taken: list[int] = []
    refused = 0
    numbers = itertools.count()
    is_over = asyncio.Event()

    async def send(flow: FlowHandle[Any]) -> None:
        nonlocal refused
        while not is_over.is_set():
            number = next(numbers)
            for each in (Toggle.switch_on, Toggle.switch_off):
                try:
                    await flow.trigger(each, number)
                except SignalRefused:
                    refused += 1
                else:
                    taken.append(number)
                    break

    async with EventProvider(server.url, lease=LEASE) as provider:
        flow = await open_flows(provider).execute(Toggle, [])
        worker = run("worker", _APP, url=server.url, lease=LEASE)
        sending = [asyncio.create_task(send(flow)) for _ in range(4)]
        for _ in range(4):
            wanted = len(taken) + 10
            await until("more were taken", lambda: len(taken) >= wanted, story=worker.story)  # noqa: B023
            worker.kill()
            worker = run("worker", _APP, url=server.url, lease=LEASE)
        is_over.set()
        await asyncio.gather(*sending)
        await wait_rest(server, flow, worker)
        if len(taken) % 2:
            await flow.trigger(Toggle.switch_off, -1)
            taken.append(-1)
            await wait_at(server, flow, "off", worker)
        await flow.trigger(Toggle.end)
        assert await flow.result(240) == taken
        assert await version_of(flow) == len(taken) + 1
    assert refused > 0


async def test_timeout_fires_while_settling_what_is_recorded_is_undone(
    server: Backend, proxy: Proxy, run: Run, journal: Journal
) -> None:
    """The last move is recorded, and the worker dies before the end is: the timeout comes first, so the flow
    is undone.
    """
    dead: list[Program] = []
    async with EventProvider(server.url, lease=LEASE) as provider:
        flow = await open_flows(provider).execute(Review, Draft(), timeout=15)
        over = time.monotonic() + 16
        proxy.strike("completed review", "before", lambda: [each.kill() for each in dead])
        dead.append(run("worker", _APP, url=proxy.url, lease=LEASE))
        await wait_at(server, flow, "waiting", dead[0])
        await flow.trigger(Review.approve, True)
        await until("it is dead", lambda: dead[0].has_ended, story=dead[0].story)
        assert await version_of(flow) == 4
        await until("its time is over", lambda: time.monotonic() > over)
        run("worker", _APP, url=server.url, lease=LEASE)
        with pytest.raises(FlowTimeout) as caught:
            await flow.result(240)
        assert caught.value.rollback in ("complete", "incomplete")
    assert Counter(each.payload for each in journal.read("did")) == Counter([*_BODIES, "unprepare"])


_CUTS = [
    pytest.param(point, cause, marks=pytest.mark.long if cause == "timeout" else ())
    for point in ("cut-while-guards-are-asked", "body-outlives-cut", "cut-meets-move")
    for cause in ("cancel", "timeout", "stop")
    if (point, cause) != ("cut-meets-move", "timeout")  # its lease would run out while the call is held
]


@pytest.mark.parametrize(("point", "cause"), _CUTS)
async def test_a_body_that_took_effect_is_recorded_whatever_comes_before_its_move(
    point: str, cause: str, server: Backend, proxy: Proxy, run: Run, journal: Journal, tmp_path: Path
) -> None:
    is_stubborn, loop = point == "body-outlives-cut", asyncio.get_running_loop()
    held = {"cut-while-guards-are-asked": "guard", "body-outlives-cut": "one"}.get(point)
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        if held is not None:
            (tmp_path / f"hold {held}").touch()
        worker = run("worker", _APP, "--grace", "0.1", url=proxy.url, lease=LEASE)
        await (await flows.execute(Part, 0)).result(240)  # so it runs
        starting: asyncio.Future[FlowHandle[str]] = loop.create_future()

        async def cut() -> None:
            if cause == "cancel":
                await (await starting).cancel("enough")
            elif cause == "stop":
                worker.send(signal.SIGTERM)
            else:
                while (await flow.status()).state not in ("rolling_back", "failed"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        if held is None:  # before the flow begins, because its worker is there
            proxy.strike(
                "append 0", "before", lambda: asyncio.run_coroutine_threadsafe(cut(), loop).result(240)
            )
        limit = 2.0 if cause == "timeout" else None
        flow: FlowHandle[str] = await flows.execute(Cutting, is_stubborn, timeout=limit)
        starting.set_result(flow)
        if held is None:
            await until("it was cut", lambda: proxy.cuts["append 0"] == 1, story=worker.story)
        else:
            what = "asked" if held == "guard" else "began"
            await until("it is there", lambda: bool(journal.read(what)), story=worker.story)
            await cut()
        if cause == "stop":
            await until("it has stopped", lambda: worker.has_ended, story=worker.story)
            (tmp_path / f"hold {held}").unlink(missing_ok=True)
            run("worker", _APP, url=server.url, lease=LEASE)
            assert await flow.result(240) == "done"
            assert [each.payload for each in journal.read("did")] == ["part 0", "one", "two"]
            return
        with pytest.raises(FlowTimeout if cause == "timeout" else FlowCancelled) as caught:
            await flow.result(240)
    assert caught.value.rollback == "complete"
    assert [each.payload for each in journal.read("did")] == ["part 0", "one", "undo one"]
