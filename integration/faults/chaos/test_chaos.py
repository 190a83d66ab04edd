"""A short chaos run, which is part of the suite; `tox -e chaos` is the long one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import Chaos


@pytest.fixture
def chaos(kind: str, tmp_path: Path) -> Iterator[Chaos]:
    chaos = Chaos(tmp_path, kind=kind, jobs=1000, seed=random.randrange(1 << 32))
    yield chaos
    chaos.close()


@pytest.mark.servers("one")
async def test_under_a_kill_each_second_and_other_faults_each_job_ends_once_and_is_heard(
    chaos: Chaos,
) -> None:
    reconciliation = await chaos.run()
    print("\n".join(chaos.lines(reconciliation)))  # noqa: T201  (the seed, for a failure)
    assert reconciliation.is_clean()
    assert len(reconciliation.answers) == chaos.jobs
    assert chaos.fleet.complaints() == []
    assert chaos.fleet.kills >= 3
    assert chaos.load.orders > 0
    assert chaos.load.joined > 0
    assert reconciliation.rescued > 0, "kills that hit nobody show nothing"
