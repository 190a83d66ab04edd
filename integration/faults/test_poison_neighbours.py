"""A job that kills its process does not take those beside it along: all but it complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from audit import Audit
from backends import Backend
from conditions import until
from programs import Program
from supervisor import Supervisor

from eventbus import EventProvider


async def test_the_neighbours_of_a_poison_complete(server: Backend, run: Callable[..., Program]) -> None:
    supervisor = Supervisor(
        lambda: run("worker", "shop:provider", url=server.url, lease="500ms", max_stalls=3)
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
