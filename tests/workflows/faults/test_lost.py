"""A flow whose record the server lost is reported as lost, not as slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.records import read_record

from eventbus import EventProvider, ResponseTimeout, UnknownJob
from workflows import Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_a_flow_whose_root_is_gone_is_unknown_to_who_waits_and_one_that_waits_times_out(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, until: Until
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[Any, Any] = Workflow("quiet")
    workflow.step(lambda _: None, name="never")
    flows.register(workflow)
    async with provider:
        handle, other = [await flows.execute(workflow, None) for _ in range(2)]
        waiting = [asyncio.create_task(each.result(timeout=1.5)) for each in (handle, other)]
        (record,) = admin("KEYS", f"{prefix}:*:job:{handle.id}")
        await until(lambda: "joined" in read_record(admin, record), "it has looked, and waits")
        admin("DEL", *admin("KEYS", f"{prefix}:*:{handle.id}*"))
        with pytest.raises(UnknownJob) as caught:
            await waiting[0]
        assert caught.value.job_id == handle.id
        with pytest.raises(ResponseTimeout):
            await waiting[1]
