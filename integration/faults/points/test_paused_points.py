"""Workers that die while a step is paused: no attempt begins, nothing is lost, and a resume lets the flow go
on.
"""

from __future__ import annotations

import asyncio

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.sites import Site, heard_of, run_caller

from workflows import Workflow, WorkflowProvider

pytestmark = pytest.mark.servers("one")

SHELF = "workflow.{}.steps/charge"


async def _wait_held(flows: WorkflowProvider, workflow: str) -> None:
    async with asyncio.timeout(240):
        while (await flows.provider.inspector.queues.controls(SHELF.format(workflow)))[0].waiting != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("workflow", [flow_app.order, flow_app.local_order], ids=["spread", "local"])
async def test_dies_at_the_shelf(
    workflow: Workflow[flow_app.Order, str], when: str, server: Backend, site: Site
) -> None:
    """The job of the paused step is claimed, and its worker dies before or after it puts it on the shelf."""
    async with run_caller(server) as flows:
        await flows.pause(workflow, step="charge")
        site.set_trap(when, "shelved charge")
        site.begin()
        async with site.supervised():
            handle = await flows.execute(workflow, flow_app.Order(7))
            await site.wait_killed()
            await _wait_held(flows, workflow.name)
            await flows.resume(workflow, step="charge")
            heard = await heard_of(handle)
        assert isinstance(heard, str)
        ledger = await site.judge(flows, handle, heard)
        assert ledger.repeated(handle.id, "did") == []


@pytest.mark.parametrize("workflow", [flow_app.order, flow_app.local_order], ids=["spread", "local"])
async def test_all_workers_die_in_a_pause_and_the_step_goes_on_after_a_resume(
    workflow: Workflow[flow_app.Order, str], server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        await flows.pause(workflow, step="charge")
        site.begin()
        handle = await flows.execute(workflow, flow_app.Order(7))
        await _wait_held(flows, workflow.name)
        site.kill()
        await flows.resume(workflow, step="charge")
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, str)
        ledger = await site.judge(flows, handle, heard, site.supervisor.workers[0].pid)
        assert ledger.repeated(handle.id, "did") == []


@pytest.mark.parametrize("workflow", [flow_app.order, flow_app.local_order], ids=["spread", "local"])
async def test_resumer_dies(workflow: Workflow[flow_app.Order, str], server: Backend, site: Site) -> None:
    """Who resumes dies before its call brings the job home: the announcement of a worker does, within 5 s."""
    async with run_caller(server) as flows:
        await flows.pause(workflow, step="charge")
        site.begin()
        handle = await flows.execute(workflow, flow_app.Order(7))
        await _wait_held(flows, workflow.name)
        with server.client() as client:  # the state between two calls of a resume
            client.hdel(f"eb:2:{{0}}:limits:{SHELF.format(workflow.name)}", "paused", "by", "reason")
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, str)
        await site.judge(flows, handle, heard)
