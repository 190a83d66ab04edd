"""Transitions that fail: they are tried again, move to an error place, or wait for somebody, and the flow has
not failed.
"""

from __future__ import annotations

from typing import Any

import pytest
from drivers.machines.acting import Draft, Open, Until, act, broken, did, stands_at

from eventbus import Later, Retry, UsageError
from workflows import END, FlowHandle, FlowNotEnded, MachineContext, StateMachine, transition

pytestmark = pytest.mark.virtual


class Failing(StateMachine[Draft], name="failing", start="a"):
    @transition("a", to="b")
    async def work(self, ctx: MachineContext[Draft]) -> None:
        ctx.state.value += 1
        act("work")

    @transition("b", to="c", wait=int)
    async def take(self, ctx: MachineContext[Draft], number: int) -> None:
        ctx.state.value = number
        act("take")

    @transition("c", to=END)
    async def end(self, ctx: MachineContext[Draft]) -> int:
        return ctx.state.value


async def failed(flow: FlowHandle[Any], what: str, until: Until) -> None:
    async def has_failed() -> bool:
        report = await flow.report()
        return report.state == "waiting" and what in report.error

    await until(has_failed, f"{what} has failed")


async def test_l019_a_failed_transition_waits_at_its_place_until_somebody_retries_it(
    open_flows: Open, until: Until
) -> None:
    """Defect F7: the run counted as failed, though it could go on."""
    flows = await open_flows(Failing)
    broken.add("work")
    flow = await flows.execute(Failing, Draft())
    await failed(flow, "ValueError: work is broken", until)
    machine = (await flow.report()).machine
    assert machine is not None
    assert (machine.place, machine.version, machine.state["value"]) == ("a", 0, 0)
    await flow.retry()
    await until(lambda: did == ["work", "work"], "it was tried again")
    await failed(flow, "ValueError: work is broken", until)
    broken.clear()
    await flow.retry()
    await stands_at(flow, "b", until)
    assert (await flow.report()).error == ""
    with pytest.raises(FlowNotEnded, match="is waiting, and nothing failed at its place"):
        await flow.retry()


async def test_a_trigger_whose_transition_failed_is_retried_with_its_payload_or_comes_again(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Failing)
    broken.add("take")
    flow = await flows.execute(Failing, Draft())
    await stands_at(flow, "b", until)
    await flow.trigger(Failing.take, 7)
    await failed(flow, "take is broken", until)
    broken.clear()
    await flow.retry()
    assert await flow.result(timeout=240) == 7
    broken.add("take")
    flow = await flows.execute(Failing, Draft())
    await stands_at(flow, "b", until)
    await flow.trigger(Failing.take, 7)
    await failed(flow, "take is broken", until)
    broken.clear()
    await flow.trigger(Failing.take, 8)
    assert await flow.result(timeout=240) == 8


async def test_l022_a_retry_with_a_target_is_a_recorded_move(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Failing)
    broken.add("take")
    flow = await flows.execute(Failing, Draft())
    await stands_at(flow, "b", until)
    await flow.trigger(Failing.take, 7)
    await failed(flow, "take is broken", until)
    with pytest.raises(UsageError, match="has no place 'nowhere'; its places: 'a', 'b', 'c'"):
        await flow.retry(target="nowhere")
    await flow.retry(target="a")
    await until(lambda: did == ["work", "take", "work"], "it works again")
    await stands_at(flow, "b", until)
    machine = (await flow.report()).machine
    assert machine is not None
    assert [(each.kind, each.transition, each.target) for each in machine.moves] == [
        ("move", "work", "b"),
        ("failed", "take", "b"),
        ("move", "", "a"),
        ("move", "work", "b"),
    ]
    assert machine.version == 3


class Patient(StateMachine[Draft], name="patient", start="a"):
    @transition("a", to=END, retry=Retry(attempts=3, delay=0.3, backoff="fixed"), error_place="broken")
    async def work(self, ctx: MachineContext[Draft]) -> int:
        did.append(f"work {ctx.attempt}")
        if ctx.attempt < 3 or "work" in broken:
            raise ValueError("not yet")
        return ctx.attempt

    @transition("broken", to=END, wait=None)
    async def mend(self, ctx: MachineContext[Draft], payload: None) -> str:
        return f"mended: {ctx.error}"


async def test_l024_during_the_pause_the_slot_is_free_and_the_attempts_count(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Patient, concurrency=1)
    some = [await flows.execute(Patient, Draft()) for _ in range(3)]
    assert [await each.result(timeout=240) for each in some] == [3, 3, 3]
    assert sorted(did) == sorted(["work 1", "work 2", "work 3"] * 3)
    assert sorted(did[:3]) == ["work 1"] * 3, "the others ran in the pause of the first"


async def test_l020_the_error_place_is_no_failure_and_its_trigger_recovers(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Patient)
    broken.add("work")
    flow = await flows.execute(Patient, Draft())
    await stands_at(flow, "broken", until)
    report = await flow.report()
    assert (report.state, report.error) == ("waiting", "ValueError: not yet")
    await flow.trigger(Patient.mend)
    assert await flow.result(timeout=240) == "mended: ValueError: not yet"


async def test_a_retry_at_an_error_place_goes_back_and_runs_again(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Patient)
    broken.add("work")
    flow = await flows.execute(Patient, Draft())
    await stands_at(flow, "broken", until)
    broken.clear()
    await flow.retry()
    assert await flow.result(timeout=240) == 3


class Putting(StateMachine[Draft], name="putting", start="a"):
    @transition("a", to=END, retry=Retry(attempts=2, delay=0.01))
    async def go(self, ctx: MachineContext[Draft]) -> str:
        did.append(f"attempt {ctx.attempt} {ctx.error!r}")
        if len(did) < 3:
            raise Later(0.05)
        if len(did) < 4:
            raise ConnectionError("away")
        return "gone"


async def test_an_attempt_that_is_put_off_is_no_failure(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Putting)
    flow = await flows.execute(Putting, Draft())
    assert await flow.result(timeout=240) == "gone"
    assert did == ["attempt 1 ''", "attempt 1 ''", "attempt 1 ''", "attempt 2 'ConnectionError: away'"]
    machine = (await flow.report()).machine
    assert machine is not None
    assert [(each.kind, each.attempts, each.error) for each in machine.moves] == [
        ("try", 0, ""),
        ("try", 0, ""),
        ("try", 1, "ConnectionError: away"),
        ("move", 1, ""),
    ]


async def test_a_retry_that_goes_back_from_the_error_place_enters_its_place_anew(
    open_flows: Open, until: Until
) -> None:
    """Its delays count from then, and not from when it came to the error place."""

    class Back(StateMachine[int], name="goes-back", start="a"):
        @transition("a", to=END, wait=None, error_place="broken")
        async def work(self, ctx: MachineContext[int], payload: None) -> None:
            did.append("work")
            if len(did) == 1:
                raise ValueError("not yet")
            raise Later("1 hour")

        @transition("broken", to=END, wait=None)
        async def leave(self, ctx: MachineContext[int], payload: None) -> None: ...

    flows = await open_flows(Back)
    flow = await flows.execute(Back, 1)
    await stands_at(flow, "a", until)
    await flow.trigger(Back.work)
    await stands_at(flow, "broken", until)
    at_error = (await flow.report()).machine
    assert at_error is not None

    async def is_later() -> bool:
        return (await flows.provider.jobs.look(flow.id, limit=0)).root["now"] > str(at_error.entered_ms + 1)

    await until(is_later, "the clock of the server has moved on")
    await flows.retry(flow.id)
    await stands_at(flow, "a", until)
    again = (await flow.report()).machine
    assert again is not None
    assert again.entered_ms > at_error.entered_ms
    await flow.cancel()
