"""A state machine inside a flow of another kind whose workers are killed with SIGKILL, before, in and behind
it, and while both are undone.

A part may begin twice only if its worker died in it; what is undone is undone in the reverse order of what
was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from apps.handlers.inside_app import OUTER, register
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.sites import LEASE

from eventbus import EventProvider
from workflows import StepError, WorkflowProvider

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")

_APP = "apps.handlers.inside_app:provider"
_PARTS = ["open", "prepare", "finish", "close"]
_UNDONE = ["undo close", "undo finish", "undo prepare", "undo open"]
_QUICK = ("finish", "undo finish")
"""`tox -e faults` has the other points too."""


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize(
    "part",
    [pytest.param(each, marks=() if each in _QUICK else pytest.mark.long) for each in [*_PARTS, *_UNDONE]],
)
async def test_another_worker_goes_on_behind_what_is_recorded(
    outer: str, part: str, server: Backend, run: Run, journal: Journal, tmp_path: Path
) -> None:
    fails = part in _UNDONE
    (tmp_path / f"die in {part}").touch()
    async with EventProvider(server.url, lease=LEASE) as provider:
        flow = await register(WorkflowProvider(provider)).execute(OUTER[outer], -40 if fails else 40)
        first = run("worker", _APP, url=server.url, lease=LEASE)
        await until("it is dead", lambda: first.has_ended, story=first.story)
        run("worker", _APP, url=server.url, lease=LEASE)
        if fails:
            with pytest.raises(StepError, match="it is below 0") as caught:
                await flow.result(240)
            assert caught.value.rollback == "complete"
        else:
            assert await flow.result(240) == 42
    done = [each.payload for each in journal.read("did")]
    assert done == ([*_PARTS, *_UNDONE] if fails else _PARTS)
    began = Counter(each.payload for each in journal.read("began"))
    assert began == Counter({**dict.fromkeys(done, 1), part: 2})
