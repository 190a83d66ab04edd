"""The contract of flows holds for every kind: graphs, local and spread, durable functions, pipelines and
state machines.

Where a behaviour makes no sense for a kind, `LEFT_OUT` says why, and nothing else leaves a kind out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from drivers.kinds.parts import Parts
from drivers.kinds.rows import KINDS, given, make_row, renew
from drivers.kinds.running import LEFT_OUT, Run, Running

from eventbus import EventProvider
from workflows.testing import run_inline


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `kind` for each kind that has what its mark `needs` names."""
    if "kind" in metafunc.fixturenames:
        needs = [name for mark in metafunc.definition.iter_markers("needs") for name in mark.args]
        left_out = {kind for name in needs for kind in LEFT_OUT[name]}
        metafunc.parametrize("kind", [kind for kind in KINDS if kind not in left_out])


@pytest.fixture
def parts() -> Parts:
    """What the parts of the flows of this test do."""
    return renew()


@pytest.fixture
def running(
    kind: str, parts: Parts, make_provider: Callable[..., EventProvider], stack: AsyncExitStack
) -> Running:
    """Flows of the kind on the server."""
    return Running(kind, make_provider, stack)


@pytest.fixture(params=["inline", "server"])
def run(request: pytest.FixtureRequest, kind: str, running: Running) -> Run:
    """Run a flow to its end, in this process or on the server: `await run(number, retry=..., flow={"timeout":
    1})`.
    """

    async def run_here(number: int, *, flow: Any = None, **options: Any) -> Any:
        of_flow: dict[str, Any] = flow or {}
        if request.param == "server":
            await running.open(**options)
            return await (await running.start(number, **of_flow)).result(240)
        return await run_inline(make_row(kind, **options), given(kind, number), **of_flow)

    return run_here
