"""The load of a chaos run: emissions in many loops, and the orders of an operator between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from harness.conditions import last
from harness.load import Answer
from harness.toil import EVENTS

from eventbus import EventProvider, Limit, StoreUnavailable, UnknownJob, UsageError
from eventbus.model import clock

__all__ = ["ToilLoad"]

_LATE = 60.0
"""Seconds that an emission may report its timeout late on a busy machine."""
_MERGES: tuple[dict[str, Any], ...] = (
    {"throttle": "100ms"},
    {"debounce": "50ms", "longest": "500ms"},
    {"keep_last": True},
)
_ORDERS = ("pause", "limit", "edit", "edit")


class ToilLoad:
    """Emits so many jobs, and gives orders until the last has ended. The seed decides the jobs."""

    def __init__(
        self,
        seed: int,
        jobs: int,
        *,
        timeout: float,
        late: float = _LATE,
        longest: float = 0.6,
        orders: tuple[str, ...] = _ORDERS,
    ) -> None:
        """`timeout` is the provider's for replies, and `late` how much later one may come; `longest` is
        how long a job takes at most; all in seconds. `orders` may also be `cancel`, `retry` and `again`.
        """
        self.answers: list[Answer] = []
        self.late: list[str] = []
        """The jobs whose outcome came later than it may."""
        self.seconds: dict[tuple[str, int], float] = {}
        """How long each emission took, by its event and number."""
        self.orders = 0
        """Orders of the operator that the server took."""
        self.joined = 0
        """Emissions that joined the job of another one."""
        self.stopped: set[str] = set()
        """The jobs that the operator told to stop."""
        self.repeated: set[str] = set()
        """The ended jobs that the operator let run again."""
        self._seed, self._jobs = seed, jobs
        self._limit = timeout + late
        self._longest_ms = 1000 * longest
        self._kinds = orders
        self._is_over = False
        self._next = 0
        self._open: dict[str, tuple[str, dict[str, Any]]] = {}
        """The jobs without an outcome, but those of keys -> event and payload."""

    async def emit_all(self, provider: EventProvider, *, loops: int) -> None:
        """Emit all jobs, each loop one after the other; return when the last has its outcome."""
        await asyncio.gather(*(self._emit_in_turn(provider) for _ in range(loops)))
        self._is_over = True

    async def _emit_in_turn(self, provider: EventProvider) -> None:
        while self._next < self._jobs:
            self._next += 1
            await self._emit(provider, self._next)

    async def _emit(self, provider: EventProvider, n: int) -> None:
        """One job: three in four are short, one in twenty needs a second attempt, one in fifty fails."""
        rng = random.Random(f"{self._seed}-{n}")
        ms = rng.uniform(5, 30) if rng.random() < 0.75 else rng.uniform(100, self._longest_ms)
        good = rng.choices([1, 2, 9], [93, 5, 2])[0]
        began = clock.monotonic()
        payload: dict[str, Any] = {"n": n, "ms": ms, "good": good}
        match rng.choices(EVENTS, [75, 15, 10])[0]:
            case "merged":
                key = rng.randrange(6)
                options = _MERGES[key % len(_MERGES)]
                emission = provider.emit("merged", payload, idempotency_key=f"key-{key}", **options)
            case event:
                emission = provider.emit(event, payload)
                self._open[emission.job_id] = event, payload
        was_enqueued, result, error = False, None, None
        try:
            await emission.enqueued()
            was_enqueued = True
            result = await emission
        except Exception as caught:  # noqa: BLE001  (the reconciliation checks it)
            error = caught
        self._open.pop(emission.job_id, None)
        self.joined += emission.joined
        self.seconds[emission.event, n] = seconds = clock.monotonic() - began
        if seconds > self._limit:
            self.late.append(emission.job_id)
        self.answers.append(Answer(emission.job_id, n, was_enqueued, result, error))

    async def operate(self, provider: EventProvider) -> None:
        """Give orders, each of them until the server has taken it."""
        order = random.Random(f"{self._seed}-orders")
        while not self._is_over:
            await last(order.uniform(0.2, 1))
            match order.choice(self._kinds):
                case "pause":
                    event = order.choice(EVENTS)
                    await self._order(partial(provider.pause, event, reason="chaos"))
                    await last(order.uniform(0.1, 1))
                    await self._order(partial(provider.resume, event))
                case "limit":
                    limit = order.choice([None, Limit(at_once=order.randint(1, 20)), Limit(rate="100/1s")])
                    await self._order(partial(provider.set_limit, "bounded", limit))
                case "cancel":
                    for job in self._some_open(order, 2):
                        await self._stop(provider, job)
                case "retry":
                    ended = sorted(
                        {each.job for each in self.answers if each.error is not None} - self.repeated
                    )
                    for job in order.sample(ended, min(2, len(ended))):
                        await self._retry(provider, job)
                case "again":
                    # Somebody hears of the end of what he cancelled, and at once wants it after all.
                    for job in self._some_open(order, 1):
                        await self._stop(provider, job)
                        while job in self._open:
                            await last(0.01)
                        await self._retry(provider, job)
                case _:
                    await self._edit(provider, order)

    def _some_open(self, order: random.Random, most: int) -> list[str]:
        """Choose jobs without an outcome that nobody has told to stop."""
        jobs = [job for job in self._open if job not in self.stopped]
        return order.sample(jobs, min(most, len(jobs)))

    async def _stop(self, provider: EventProvider, job: str) -> None:
        self.stopped.add(job)
        await self._order(partial(provider.cancel, job, "chaos"))

    async def _retry(self, provider: EventProvider, job: str) -> None:
        if await self._order(partial(provider.inspector.jobs.retry, job)):
            self.repeated.add(job)

    async def _edit(self, provider: EventProvider, order: random.Random) -> None:
        """Edit some open jobs; those that run or have ended stay as they are."""
        inspector = provider.inspector
        for job, (event, payload) in order.sample(list(self._open.items()), min(5, len(self._open))):
            edits: list[Callable[[], Awaitable[Any]]] = [
                partial(inspector.jobs.promote, job),
                partial(inspector.jobs.delay, job, "100ms"),
                partial(inspector.jobs.prioritize, job, order.randint(-9, 9)),
                partial(inspector.jobs.replace_payload, event, job, payload),
            ]
            await self._order(order.choice(edits))

    async def _order(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Give an order until the server has taken it; return its answer, None if there is no such job."""
        while True:
            try:
                answer = await call()
            except UnknownJob:  # its emission is not enqueued yet
                return None
            except UsageError:  # a later job has the key of one that shall run again
                return None
            except StoreUnavailable:
                await last(0.1)
            else:
                self.orders += 1
                return answer
