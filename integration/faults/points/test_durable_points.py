"""Each crash window of a flow of a durable function: steps, a wait for a signal, and rollbacks.

Its worker is killed with SIGKILL at a named point, and another process goes on. A step may happen twice only
if it died between the effect and the record, and then with the same step key. Effects are told by a file
outside of the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from apps.durable_app import STEPS, approval, contest, part, report, stumbling, whole
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When
from harness.sites import LEASE

from eventbus import EventProvider, StalledError
from workflows import FlowCancelled, FlowHandle, StepError, WorkflowProvider
from workflows.records.entries import read_entries

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")

KINDS = ["step", "step", "wait", "signal", "step", "step"]
WAIT = KINDS.index("wait")


class Point(NamedTuple):
    """Where the worker dies, how many entries are recorded then, and the step that happens twice by that."""

    when: str
    where: str
    recorded: int
    twice: str = ""

    def __str__(self) -> str:
        return f"{self.when}-{self.where.replace(' ', '-')}"

    @property
    def is_behind_wait(self) -> bool:
        return self.recorded > WAIT and not self.where.startswith(("suspended", f"append {WAIT}"))


QUICK = (
    "in collect",
    "before append 0",
    "after append 1",
    "after suspended report",
    "before append 3",
    "in print",
    "after append 4",
    "before completed report",
)
"""`tox -e faults` has the other points too."""


def points() -> list[Point]:
    found: list[Point] = []
    steps = iter(STEPS)
    for place, kind in enumerate(KINDS):
        step = next(steps) if kind == "step" else ""
        if step:
            found.append(Point("in", step, place))
        found.append(Point("before", f"append {place}", place, step))
        found.append(Point("after", f"append {place}", place + 1))
        if kind == "wait":
            found += [Point(when, "suspended report", place + 1) for when in ("before", "after")]
    return found + [Point(when, "completed report", len(KINDS)) for when in ("before", "after")]


def open_flows(provider: EventProvider) -> WorkflowProvider:
    flows = WorkflowProvider(provider)
    flows.register(report)
    flows.register(part)
    flows.register(whole)
    return flows


async def kinds_of(flows: WorkflowProvider, flow: FlowHandle[Any]) -> list[str]:
    entries = read_entries(flow.id, await flows.provider.jobs.journal(flow.id))
    return [entry.kind for entry in entries]


async def wait_asleep(server: Backend, flow: FlowHandle[Any], worker: Program) -> None:
    await until(
        "the flow sleeps", lambda: Audit(server).jobs[flow.id].state == "waiting-children", story=worker.story
    )


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            each, id=str(each), marks=() if f"{each.when} {each.where}" in QUICK else pytest.mark.long
        )
        for each in points()
    ],
)
async def test_a_flow_goes_on_behind_its_last_record_whose_worker_dies_at_any_point(
    point: Point, server: Backend, proxy: Proxy, run: Run, journal: Journal, tmp_path: Path
) -> None:
    dead: list[Program] = []
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flow = await flows.execute(report, "May")
        if point.when == "in":
            (tmp_path / f"die in {point.where}").touch()
        else:
            moment: When = "before" if point.when == "before" else "after"
            proxy.strike(point.where, moment, lambda: [each.kill() for each in dead])
        dead.append(run("worker", "apps.durable_app:provider", url=proxy.url, lease=LEASE))
        if point.is_behind_wait or point.where == f"append {WAIT + 1}":
            await wait_asleep(server, flow, dead[0])
            await flow.signal(approval, True)
        await until("it is dead", lambda: dead[0].has_ended, story=dead[0].story)
        assert await kinds_of(flows, flow) == KINDS[: point.recorded]
        before = journal.read("began")
        if not (point.is_behind_wait or point.where == f"append {WAIT + 1}"):
            await flow.signal(approval, True)
        heir = run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        assert await flow.result(240) == [f"{step} done" for step in STEPS]
        kinds = await kinds_of(flows, flow)
    wanted = [kind for kind in KINDS if kind != "wait" or "wait" in kinds]
    assert kinds == wanted
    began = journal.read("began")[len(before) :]
    assert [each.payload for each in began] == list(STEPS[KINDS[: point.recorded].count("step") :])
    times = Counter(each.payload for each in journal.read("did"))
    assert times == Counter(STEPS) + Counter([point.twice] if point.twice else [])
    assert heir.complaints() == []
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


@pytest.mark.parametrize("step", ["undo render", "undo collect"])
async def test_a_rollback_whose_worker_dies_runs_again_and_no_other_does(
    step: str, server: Backend, run: Run, journal: Journal, tmp_path: Path
) -> None:
    (tmp_path / f"die in {step}").touch()
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flow = await flows.execute(report, "May")
        await flow.signal(approval, False)
        dead = run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        await until("it is dead", lambda: dead.has_ended, story=dead.story)
        run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        with pytest.raises(StepError) as caught:
            await flow.result(240)
    assert (caught.value.rollback, caught.value.step) == ("complete", "__function__")
    assert [each.payload for each in journal.read("did")] == [
        "collect",
        "render",
        "undo render",
        "undo collect",
    ]
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


async def test_a_flow_whose_worker_died_in_a_step_and_that_is_cancelled_then_names_the_step_in_doubt(
    server: Backend, run: Run, journal: Journal, tmp_path: Path
) -> None:
    (tmp_path / "die in render").touch()
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flow = await flows.execute(report, "May")
        dead = run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        await until("it is dead", lambda: dead.has_ended, story=dead.story)
        assert await flow.cancel("no more")
        run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        with pytest.raises(FlowCancelled) as caught:
            await flow.result(240)
        told = await flow.report()
    assert caught.value.rollback == "incomplete"
    assert [(each.step, type(each.error)) for each in caught.value.rollback_errors] == [
        ("work@1", StalledError)
    ]
    assert told.steps["work@1"].state == "unknown"
    assert [each.payload for each in journal.read("did")] == ["collect", "undo collect"]


@pytest.mark.parametrize(("moment", "place"), [("after", 1), ("before", 3)])
async def test_the_loser_of_a_race_is_in_doubt_if_its_worker_dies_before_it_recorded_how_it_ended(
    moment: When, place: int, server: Backend, proxy: Proxy, run: Run, journal: Journal
) -> None:
    dead: list[Program] = []
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flows.register(contest)
        flow = await flows.execute(contest, None)
        proxy.strike(f"append {place}", moment, lambda: [each.kill() for each in dead])
        dead.append(run("worker", "apps.durable_app:provider", url=proxy.url, lease=LEASE))
        await until("it is dead", lambda: dead[0].has_ended, story=dead[0].story)
        assert await kinds_of(flows, flow) == ["step", "cut", "race"]
        run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        with pytest.raises(StepError) as caught:
            await flow.result(240)
        told = await flow.report()
    assert caught.value.rollback == "incomplete"
    assert [(each.step, type(each.error)) for each in caught.value.rollback_errors] == [
        ("stay@0", StalledError)
    ]
    assert told.steps["stay@0"].state == "unknown"
    did = [each.payload for each in journal.read("did")]
    assert (did[0], did[1], set(did[2:])) == ("loser", "winner", {"later", "undo later", "undo winner"})
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


async def test_the_loser_of_a_race_stays_in_doubt_if_its_worker_died_and_its_next_attempt_was_cut(
    server: Backend, run: Run, journal: Journal, tmp_path: Path
) -> None:
    (tmp_path / "die in loser").touch()
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flows.register(contest)
        flow = await flows.execute(contest, None)
        dead = run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        await until("it is dead", lambda: dead.has_ended, story=dead.story)
        run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        with pytest.raises(StepError) as caught:
            await flow.result(240)
        told = await flow.report()
    assert caught.value.rollback == "incomplete"
    assert [each.step for each in caught.value.rollback_errors] == ["stay@0"]
    assert told.steps["stay@0"].state == "unknown"
    assert [each.payload for each in journal.read("did")][-2:] == ["undo later", "undo winner"]


CHILDREN = ["child", "step", "child", "step", "child", "step"]
"""The entries of `whole`: the beginning and the end of a flow and of two jobs."""
CHILD_POINTS = [
    *(("before", f"append {place}") for place in range(len(CHILDREN))),
    *(("after", f"append {place}") for place in range(len(CHILDREN))),
    *(("in", step) for step in ("inner", "left", "right")),
    ("before", "completed whole"),
    ("after", "completed whole"),
]
QUICK_CHILDREN = (
    "after append 0",
    "before append 1",
    "before append 3",
    "in right",
    "before completed whole",
)


@pytest.mark.parametrize(
    ("when", "where"),
    [
        pytest.param(when, where, marks=() if f"{when} {where}" in QUICK_CHILDREN else pytest.mark.long)
        for when, where in CHILD_POINTS
    ],
)
async def test_children_are_started_once_whenever_the_worker_dies(
    when: str, where: str, server: Backend, proxy: Proxy, run: Run, journal: Journal, tmp_path: Path
) -> None:
    dead: list[Program] = []
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flow = await flows.execute(whole, True)
        if when == "in":
            (tmp_path / f"die in {where}").touch()
        else:
            moment: When = "before" if when == "before" else "after"
            proxy.strike(where, moment, lambda: [each.kill() for each in dead])
        dead.append(run("worker", "apps.durable_app:provider", url=proxy.url, lease=LEASE))
        await until("it is dead", lambda: dead[0].has_ended, story=dead[0].story)
        run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        assert await flow.result(240) == ["inner done", "left done", "right done"]
        assert await kinds_of(flows, flow) == CHILDREN
    times = Counter(each.payload for each in journal.read("did"))
    assert set(times) == {"inner", "left", "right"}
    assert sum(times.values()) <= 4, "one step may run again, which the worker did not record"
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


async def test_rollbacks_of_children_whose_worker_dies_run_again_and_no_other_does(
    server: Backend, run: Run, journal: Journal, tmp_path: Path
) -> None:
    (tmp_path / "die in undo left").touch()
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flow = await flows.execute(whole, False)
        dead = run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        await until("it is dead", lambda: dead.has_ended, story=dead.story)
        run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        with pytest.raises(StepError) as caught:
            await flow.result(240)
    assert caught.value.rollback == "complete"
    told = [each.payload for each in journal.read("did")]
    assert told == ["inner", "left", "right", "undo right", "undo left", "undo inner"]
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


DIES_IN_PAUSE = [
    *(("step", f"append {failed - 1}", failed) for failed in (1, 2, 3, 4)),
    *(("rollback", "save undo-try:climb@0", failed) for failed in (1, 2)),
    ("beside a wait", "append 1", 1),
]
"""What fails, the record behind which its worker dies, in a pause of 0.4 s, and the failed attempts then."""


@pytest.mark.parametrize(
    ("what", "record", "failed"),
    [
        pytest.param(
            *each,
            id=f"dies-in-pause-of-{each[0].replace(' ', '-')}-{each[2]}",
            marks=() if each[2] == 2 else pytest.mark.long,
        )
        for each in DIES_IN_PAUSE
    ],
)
async def test_attempts_are_counted_on_whose_worker_dies_in_a_short_pause(
    what: str, record: str, failed: int, server: Backend, proxy: Proxy, run: Run, journal: Journal
) -> None:
    dead: list[Program] = []
    passed: list[int] = []

    def kill() -> None:
        passed.append(1)
        if what != "rollback" or len(passed) == failed:
            dead[0].kill()
        else:
            proxy.strike(record, "after", kill)

    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = open_flows(provider)
        flows.register(stumbling)
        flow = await flows.execute(stumbling, what)
        proxy.strike(record, "after", kill)
        dead.append(run("worker", "apps.durable_app:provider", url=proxy.url, lease=LEASE))
        await until("it is dead", lambda: dead[0].has_ended, story=dead[0].story)
        run("worker", "apps.durable_app:provider", url=server.url, lease=LEASE)
        with pytest.raises(StepError) as caught:
            await flow.result(240)
    assert caught.value.rollback == ("incomplete" if what == "rollback" else "none")
    assert [each.attempt for each in journal.read("tried")] == [1, 2, 3, 4, 5]
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})
