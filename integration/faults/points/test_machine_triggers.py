"""What becomes of a trigger whose server dies, or whose answer is lost: it fires once, or its sender is told
that it did not.

The sender is connected by a proxy that breaks the connection, or kills the server, before the call arrives or
behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from apps.handlers.machine_app import Part, Review, Toggle
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.programs import Program
from harness.proxy import Proxy, When

from eventbus import EventProvider, SignalRefused
from workflows import FlowHandle, WorkflowProvider

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")

_APP = "apps.handlers.machine_app:provider"
_WHEN: list[When] = ["before", "after"]


@pytest.fixture
def server(make_server: Callable[..., Backend]) -> Backend:
    """A server that keeps what it has acknowledged, also if it is killed."""
    return make_server("--appendonly", "yes", "--appendfsync", "always")


def open_flows(provider: EventProvider) -> WorkflowProvider:
    flows = WorkflowProvider(provider)
    for machine in (Part, Review, Toggle):
        flows.register(machine)
    return flows


async def accepts(flow: FlowHandle[Any], trigger: str) -> None:
    """Wait until the machine accepts a trigger."""
    end = asyncio.get_running_loop().time() + 30
    while True:
        machine = (await flow.report()).machine
        if machine is not None and trigger in machine.accepts:
            return
        assert asyncio.get_running_loop().time() < end, f"{machine} does not accept {trigger}"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("when", _WHEN)
async def test_a_trigger_whose_connection_breaks_is_sent_again_and_fires_once(
    when: When, server: Backend, proxy: Proxy, run: Run
) -> None:
    run("worker", _APP, url=server.url)
    async with EventProvider(server.url) as near, EventProvider(proxy.url) as provider:
        flow = await open_flows(near).execute(Toggle, [])
        far = open_flows(provider).handle(flow.id, Toggle)
        for number in range(6):
            each = Toggle.switch_off if number % 2 else Toggle.switch_on
            await accepts(flow, each.name)
            proxy.strike("signal", when, "break")
            await far.trigger(each, number)
        await accepts(flow, "end")
        await far.trigger(Toggle.end)
        assert await flow.result(240) == list(range(6))
    assert proxy.cuts["signal"] == 6


async def test_a_trigger_that_ended_its_flow_before_its_lost_answer_is_sent_again_is_no_refusal(
    server: Backend, proxy: Proxy, run: Run
) -> None:
    worker = run("worker", _APP, url=server.url)
    async with EventProvider(server.url) as near, EventProvider(proxy.url) as provider:
        flow = await open_flows(near).execute(Toggle, [])
        await accepts(flow, "end")

        def wait_end() -> None:
            """Hold the answer back, in the thread of the proxy, until the flow has ended."""
            while Audit(server).jobs[flow.id].state != "completed":
                assert not worker.has_ended

        proxy.strike("signal", "after", wait_end)
        await open_flows(provider).handle(flow.id, Toggle).trigger(Toggle.end)
        assert await flow.result(240) == []
        with pytest.raises(SignalRefused, match="has ended"):
            await flow.trigger(Toggle.end)
    assert proxy.cuts["signal"] == 1


@pytest.mark.parametrize("when", _WHEN)
async def test_a_trigger_whose_server_is_killed_is_not_lost_once_it_is_acknowledged_and_fires_once(
    when: When, server: Backend, proxy: Proxy, run: Run
) -> None:
    """Killed before the call or before its answer: the sender repeats it. Killed behind the answer, with no
    worker: it is there.
    """
    worker = run("worker", _APP, url=server.url)
    async with EventProvider(server.url) as provider:
        flow_id = (await open_flows(provider).execute(Toggle, [])).id
        await accepts(handle_of(provider, flow_id), "switch_on")
    worker.kill()
    proxy.strike("signal", when, server.kill)
    async with EventProvider(proxy.url) as provider:
        flow = handle_of(provider, flow_id)
        sending = asyncio.create_task(flow.trigger(Toggle.switch_on, 7, trigger_id="t-1"))
        await until("the server is dead", lambda: proxy.cuts["signal"] == 1)
        await asyncio.to_thread(server.start)
        await sending
        with pytest.raises(SignalRefused, match="accepts no trigger now"):
            await flow.trigger(Toggle.switch_on, 8)
        server.kill()
        await asyncio.to_thread(server.start)
    run("worker", _APP, url=server.url)
    async with EventProvider(server.url) as provider:
        flow = handle_of(provider, flow_id)
        await accepts(flow, "switch_off")
        await flow.trigger(Toggle.switch_on, 7, trigger_id="t-1")  # a repeat of long ago
        await flow.trigger(Toggle.switch_off, 9)
        await accepts(flow, "end")
        await flow.trigger(Toggle.end)
        assert await flow.result(240) == [7, 9]


def handle_of(provider: EventProvider, flow_id: str) -> FlowHandle[Any]:
    return open_flows(provider).handle(flow_id, Toggle)
