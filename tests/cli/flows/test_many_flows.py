"""`eventbus flows retry-all` and `cancel-all`: they count, ask, and change what was meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from typer.testing import Result

from eventbus import EventProvider
from workflows import FlowContext, FlowError, WorkflowProvider, durable

Invoke = Callable[..., Result]


@durable("fails")
async def fails(ctx: FlowContext[int]) -> None:
    raise ValueError(f"no {ctx.input}")


def _open(environment: dict[str, str]) -> tuple[EventProvider, WorkflowProvider]:
    provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
    flows = WorkflowProvider(provider)
    flows.register(fails)
    return provider, flows


def test_flows_are_counted_asked_about_retried_and_cancelled(
    invoke: Invoke, environment: dict[str, str]
) -> None:
    async def make() -> list[str]:
        provider, flows = _open(environment)
        async with provider, provider.worker():
            made = [await flows.execute(fails, number) for number in range(2)]
            for flow in made:
                with pytest.raises(FlowError):
                    await flow.result(240)
        return [flow.id for flow in made]

    async def runs(ids: list[str]) -> list[tuple[int, str]]:
        provider, flows = _open(environment)
        async with provider:
            reports = [await flows.report(each) for each in ids]
        return [(report.run, report.state) for report in reports]

    ids = asyncio.run(make())
    assert (
        invoke("flows", "retry-all", "fails", "--dry-run").stdout
        == "2 failed flows of fails would be retried\n"
    )
    none = invoke("flows", "retry-all", "fails", "--error", "KeyError")
    assert none.stdout == "0 failed flows of fails would be retried\n"
    assert none.stderr.startswith("asked ")
    wrong = invoke("flows", "retry-all", "fales")
    assert (wrong.exit_code, "did you mean fails?" in wrong.stderr) == (1, True)
    refused = invoke("flows", "retry-all", "fails", said="n\n")
    assert refused.stdout.splitlines()[-1] == "nothing was changed"
    assert asyncio.run(runs(ids)) == [(1, "failed")] * 2
    agreed = invoke("flows", "retry-all", "fails", "--error", "ValueError", said="y\n")
    assert agreed.stdout.splitlines()[-1] == "2 failed flows of fails retried"
    assert asyncio.run(runs(ids)) == [(2, "pending")] * 2
    gone = invoke("flows", "cancel-all", "fails", "--yes", "--reason", "moved")
    assert (gone.exit_code, gone.stdout) == (0, "2 open flows of fails cancelled\n")
    assert {state for _, state in asyncio.run(runs(ids))} <= {"cancelled", "rolling_back"}
    assert invoke("flows", "cancel-all").stdout == "0 open flows would be cancelled\n"
