"""A job that kills its process does not harm the jobs beside it: all of them complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.programs import Program
from harness.supervisor import Supervisor

from eventbus import EventProvider


async def test_the_neighbours_of_a_poison_complete(server: Backend, run: Callable[..., Program]) -> None:
    supervisor = Supervisor(
        lambda: run("worker", "apps.event_app:provider", url=server.url, lease="500ms", max_stalls=3)
    )
    async with EventProvider(server.url, reply_timeout=60) as provider:
        poison = provider.emit("poison", {"is_gated": False})
        others = provider.emit_many("work", [{"n": n} for n in range(60)])

        def is_over() -> bool:
            supervisor.look()
            return all(each.done() for each in (poison, *others))

        await until("all have ended", is_over, within=60, story=supervisor.story)
        states = Counter(Audit(server).jobs[each.job_id].state for each in others)
        assert states == Counter(completed=60)
        assert Audit(server).jobs[poison.job_id].state == "failed"
