"""One flow and many processes: which one executes it, waits for it and runs it, and in which version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apps import flow_app
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.sites import heard_of, run_caller, wait_state

from eventbus import EventProvider, ProviderStopped, UnknownJob
from workflows import FlowHandle, Workflow, WorkflowProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

pytestmark = pytest.mark.servers("one")

Order = Workflow[flow_app.Order, str]
FLAVOURS = pytest.mark.parametrize(
    "flavour",
    [
        pytest.param(flow_app.order, id="spread", marks=pytest.mark.long),
        pytest.param(flow_app.local_order, id="local"),
    ],
)

EACH = 100
EVERY = ["reserve", "pick", "wrap", "charge", "ship"]


@pytest.fixture
def hold(tmp_path: Path) -> Callable[[str], Path]:
    """Let a step wait, until the file that is returned is gone."""

    def make(step: str) -> Path:
        file = tmp_path / f"hold {step}"
        file.touch()
        return file

    return make


@pytest.fixture
def start(run: Run, server: Backend) -> Run:
    """Start a worker of `flow_app`, of one with other settings, or of another program."""

    def start_worker(program: str = "apps.flow_app:provider", **settings: object) -> Program:
        worker = run("worker", program, url=server.url, **settings)
        worker.wait_logged("worker ready")
        return worker

    return start_worker


def done(journal: Journal, what: str = "did") -> list[str]:
    return sorted(each.payload for each in journal.read(what))


@pytest.mark.servers("each")
async def test_300_executions_of_one_key_in_three_processes_are_one_flow(
    server: Backend, run: Run, start: Run, hold: Callable[[str], Path], journal: Journal
) -> None:
    held = hold("ship")
    worker = start()
    words = ("execute", "order", '{"number": 7}', "o-7", str(EACH))
    callers = [run(*words, module="apps.caller", url=server.url) for _ in range(3)]
    for each in callers:
        await until("it has its handles", lambda each=each: each.out.count(b"\n") == 1, story=each.story)
    held.unlink()
    for each in callers:
        await until("it heard", lambda each=each: each.has_ended, story=each.story)
        assert each.wait_ended() == 0, each.story()
    ids = {flow_id for each in callers for flow_id in each.lines()[0]}
    heard = [output for each in callers for output in each.lines()[1]]
    assert len(ids) == 1, "one flow"
    assert heard == ["order 7"] * (3 * EACH)
    assert done(journal) == sorted(EVERY)
    assert {each.job for each in journal.read()} == ids
    assert worker.complaints() == []
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})
    async with run_caller(server) as flows:
        later = await flows.execute(flow_app.order, flow_app.Order(7), idempotency_key="o-7")
        assert {later.id} == ids
        assert await later.result() == "order 7"


async def test_a_handle_on_an_unknown_id_says_so_at_once(server: Backend) -> None:
    async with run_caller(server) as flows:
        handle = flows.handle("order~0123456789abcdef0123")
        for asked in (handle.result(), handle.status(), handle.cancel(), handle.report()):
            with pytest.raises(UnknownJob, match="order~0123456789abcdef0123"):
                async with asyncio.timeout(240):
                    await asked


async def test_stop_ends_open_waiters_and_the_flow_goes_on(
    server: Backend, start: Run, hold: Callable[[str], Path], journal: Journal
) -> None:
    held = hold("ship")
    start()
    async with EventProvider(server.url) as provider:
        flows = WorkflowProvider(provider)
        flows.register(flow_app.order)
        handle = await flows.execute(flow_app.order, flow_app.Order(7))
        waiters = [
            asyncio.create_task(heard_of(each))
            for each in (handle, handle, flows.handle(handle.id), flows.handle(handle.id))
        ]
        await until("it ships", lambda: "ship" in done(journal, "began"))
    async with asyncio.timeout(240):
        heard = await asyncio.gather(*waiters)
    assert [type(each) for each in heard] == [ProviderStopped] * 4
    held.unlink()
    async with run_caller(server) as flows:
        assert await flows.handle(handle.id).result() == "order 7"
    assert done(journal) == sorted(EVERY)


async def test_who_only_declares_a_workflow_executes_it_and_workers_with_its_steps_run_it(
    server: Backend, start: Run, journal: Journal
) -> None:
    worker = start()
    declared = flow_app.declared()
    async with run_caller(server, declared) as flows:
        handle = await flows.execute(declared, flow_app.Order(7))
        assert await handle.result() == "order 7"
        assert (await handle.report()).steps.keys() == set(EVERY)
    assert {each.pid for each in journal.read()} == {worker.pid}


async def test_a_worker_without_a_step_leaves_it_to_one_that_has_it(
    server: Backend, start: Run, hold: Callable[[str], Path], journal: Journal
) -> None:
    """The one knows the workflow without its last step, under the same version."""
    older = start(test_without="ship", test_version="same")
    async with run_caller(server) as flows:
        whole = flow_app.versioned("same")
        flows.register(whole)
        handle = await flows.execute(whole, flow_app.Order(7))
        await wait_parked(server, handle)
        assert done(journal) == sorted(each for each in EVERY if each != "ship")
        assert (await handle.status()).state == "running"
        newer = start(test_version="same")
        assert await handle.result() == "order 7"
    assert [each.pid for each in journal.read("did") if each.payload == "ship"] == [newer.pid]
    assert (older.complaints(), newer.complaints()) == ([], [])


@FLAVOURS
async def test_a_flow_of_a_changed_definition_is_finished_by_workers_of_its_version(
    flavour: Order, server: Backend, start: Run, hold: Callable[[str], Path], journal: Journal
) -> None:
    """The newer release has another step; it parks the jobs that it cannot run, and the older one
    takes them.
    """
    held = hold("charge")
    older = start(lease="1500ms")
    async with run_caller(server) as flows:
        handle = await flows.execute(flavour, flow_app.Order(7))
        await until("it charges", lambda: "charge" in done(journal, "began"), story=older.story)
        older.kill()
        newer = start(test_without="wrap", lease="1500ms")
        await wait_parked(server, handle)
        held.unlink()
        assert newer.complaints() == []
        again = start()
        assert await handle.result() == "order 7"
    pids = {each.payload: each.pid for each in journal.read("did")}
    assert pids["charge"] == pids["ship"] == again.pid
    assert newer.pid not in pids.values()


@FLAVOURS
async def test_everything_stops_and_a_new_worker_goes_on(
    flavour: Order, server: Backend, start: Run, hold: Callable[[str], Path], journal: Journal
) -> None:
    held = hold("charge")
    first = start(lease="1500ms")
    async with run_caller(server) as flows:
        handle = await flows.execute(flavour, flow_app.Order(7), idempotency_key="o-7")
        await wait_state(handle, "wrap", "completed")
        await until("it charges", lambda: "charge" in done(journal, "began"), story=first.story)
        first.kill()
    held.unlink()
    second = start(lease="1500ms")
    async with run_caller(server) as flows:
        assert await flows.handle(handle.id).result() == "order 7"
    assert done(journal) == sorted(EVERY), "what was done is not done again"
    pids = {each.payload: each.pid for each in journal.read("did")}
    assert [pids[each] for each in EVERY] == [first.pid] * 3 + [second.pid] * 2


async def wait_parked(server: Backend, handle: FlowHandle[Any]) -> None:
    """Wait until something of the flow waits for a worker that knows it."""

    def is_parked() -> bool:
        with server.client() as client:
            queues = list(client.scan_iter("eb:2:{0}:parked:*"))
            return any(job.startswith(handle.id) for queue in queues for job in client.zrange(queue, 0, -1))

    await until("it is parked", is_parked)
