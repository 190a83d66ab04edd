"""The simulation of flows: callers execute, signal, trigger, cancel and retry flows on the workers of a
`world`.

The shapes, courses and ledgers of graphs and durable functions are those of `flows_chaos`; beside them there
are state machines (`apps.drawn.machines`). Plain functions are left out, for they run in threads. Besides
what the world draws, a seed draws:
- whether messages to a worker, such as that of a cancel, come late now and then;
- the shapes, and the course of each flow: what fails, what is undone badly, what goes well in the next run;
- which flows are cancelled or time out, and when; when signals and triggers come, and which come twice;
- which ended flows are retried: at once, or after they were looked at; resumed, or from the start.

What must always hold:
- each run of a flow ends in time, in calm as soon as its acts allow;
- a caller hears what is recorded; cancelled is only what was cancelled in this run, and what fails, fails
  with the error of an act that fails in this run;
- of a run that is looked at: all that `ledger`, `function_ledger` and `machine_ledger` say of first runs;
- of a later run: what the run before completed and did not undo is kept, and no step runs twice in a run;
  what completed is in effect, and of what stopped each step with a rollback is not, unless the record doubts
  it; random numbers and ids are those of the first run;
- a signal is taken once in each run, and none is that was refused; what was refused by a flow that had ended
  did not end it;
- the audit is clean all the time, and nothing is left open.

Strays: a worker that is paused beyond its lease goes on a moment longer than it should, and so may any
worker while the server stands still. Of a flow in which one did something, only its end is judged. A failover
takes back what was acknowledged: there each flow only ends, if need be because it is cancelled, or is gone.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import IO, Any

from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import last

from eventbus import EventProvider
from sim.flow_callers import FlowCallers
from sim.world import TARGETS, World
from workflows import WorkflowProvider

__all__ = ["FlowSimulation"]

_AT_ONCE = (3, 8, 24)
_CALM_WITHIN = 40.0
"""Seconds of one run in calm: more than its acts, its waits and a watch take."""


class FlowSimulation(World):
    """One run of one seed."""

    targets = (*TARGETS, "ZPOPMIN", "ZPOPMIN", "signal", "signal", "restart", "append", "cancel")

    def __init__(
        self,
        seed: int,
        folder: Path,
        server: Backend,
        *,
        flows: int,
        kind: str = "",
        tape: IO[str] | None = None,
    ) -> None:
        super().__init__(seed, folder, server, kind=kind, tape=tape)
        os.environ["EVENTBUS_TEST_FOLDER"] = str(folder)  # of the actions
        self._at_once = random.Random(f"{seed}-at-once").choice(_AT_ONCE)
        self.callers = FlowCallers(
            seed,
            flows,
            patience=_CALM_WITHIN if self.kind.is_exact else self.timeout,
            journal=self._journal,
            suspects=lambda: {each.id for each in self.processes if each.is_suspect},
            strayed=lambda: {job for each in self.processes for job in each.strayed},
            now=lambda: self.seconds,
            is_exact=self.kind.is_exact,
            is_lenient=self.kind.fails_over,
        )
        self._providers: dict[EventProvider, WorkflowProvider] = {}

    @property
    def size(self) -> int:
        return len(self.callers.seconds)

    @property
    def slowest(self) -> float:
        return max(self.callers.seconds.values(), default=0.0)

    def count_workers(self) -> int:
        return random.Random(f"{self.seed}-workers").choice([2, 3])

    def serve(self, provider: EventProvider) -> None:
        flows = self._providers[provider] = WorkflowProvider(provider)
        self.callers.register(flows)

    async def use(self, provider: EventProvider) -> None:
        await self.callers.execute_all(self._providers[provider], at_once=self._at_once)

    def hear(self, command: tuple[Any, ...], reply: Any) -> None:
        """Hear nothing: the callers hear of the ends."""

    async def operate(self, provider: EventProvider) -> None:
        """Hold messages back. The callers give the orders."""
        await self._hold_news()

    async def look(self, provider: EventProvider) -> None:
        flows = self._providers[provider]
        if self.kind.fails_over:
            await self.callers.end_all(flows)
            await last(5 * self.lease)
        else:
            await self.callers.judge_all(flows)

    def judge(self) -> list[str]:
        callers = self.callers
        self.network.note(repr((callers.told, self._journal.read())))
        audit = Audit(self._backend)
        callers.judge_server(audit)
        self.flaws += callers.flaws
        self.stories += callers.stories[:3]
        return [f"counts: {', '.join(f'{name} {count}' for name, count in sorted(callers.counts.items()))}"]
