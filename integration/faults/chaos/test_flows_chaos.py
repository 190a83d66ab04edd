"""A short chaos run of flows, which is part of the suite; `tox -e chaos-flows` is the long one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from flows_chaos import FlowsChaos


@pytest.fixture
def chaos(kind: str, tmp_path: Path) -> Iterator[FlowsChaos]:
    chaos = FlowsChaos(tmp_path, kind=kind, flows=120, seed=random.randrange(1 << 32))
    yield chaos
    chaos.close()


@pytest.mark.servers("one")
async def test_under_a_kill_each_second_each_flow_completes_or_is_undone_as_it_says(
    chaos: FlowsChaos,
) -> None:
    await chaos.run()
    print("\n".join(chaos.lines()))  # noqa: T201  (the seed, for a failure)
    assert chaos.flaws == []
    ended = {name: chaos.counts[f"ended {name}"] for name in ("completed", "failed", "cancelled")}
    assert sum(ended.values()) == chaos.flows
    assert min(ended.values()) > 0
    kinds = [chaos.counts[name] for name in ("local graphs", "spread graphs", "durable functions")]
    assert min(kinds) > 0
    assert sum(kinds) == chaos.flows
    assert chaos.counts["rollbacks"] > 0
    assert chaos.fleet.kills >= 2
    assert chaos.counts["rescued steps and roots"] > 0, "kills that hit nobody show nothing"
