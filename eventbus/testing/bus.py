"""TestBus: a user's program in virtual time, on a private server.

    made -> entered (its providers run, each with a worker) -> left (all as before)

The program stays as it is: its providers start with other settings (the server, the lease), each in the
test's own event loop. A worker runs in a node of its own, so that it can be killed.

What must always hold: whatever the bus changes in a provider, it puts back; what is left of an earlier bus
does not reach the next one; an error of a start leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from eventbus.errors import EventBusError, UsageError
from eventbus.handlers.worker import EventWorker
from eventbus.lifecycle import Lifecycle
from eventbus.model import chance
from eventbus.model.clock import to_unix_ms
from eventbus.model.durations import Duration, seconds
from eventbus.model.event import Event
from eventbus.model.names import shown
from eventbus.provider import EventProvider
from eventbus.settings.settings import Settings
from eventbus.store.connection.connector import add_scheme
from eventbus.testing.loop_parts import waits_for
from eventbus.testing.network import SCHEME, Network, VirtualConnector
from eventbus.testing.nodes import Node
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime

__all__ = ["Run", "TestBus", "TimeStandsStill"]

_START = datetime(2030, 1, 1, tzinfo=UTC)


class TimeStandsStill(EventBusError):
    """Everything waits, and nothing is due: time would stand for ever. The text names who waits for what."""


class Run(NamedTuple):
    """One run of a handler or a step."""

    name: str
    """The event, or the workflow and its step."""
    attempt: int
    at: datetime


@dataclasses.dataclass
class _Program:
    """One provider in the bus."""

    provider: EventProvider
    life: Lifecycle
    settings: Settings
    middleware: list[Any]
    on_worker: Any
    node: Node | None = None
    worker: EventWorker | None = None


@dataclasses.dataclass
class _Failure:
    name: str
    error: Exception
    times: int


class TestBus:
    """Runs providers in virtual time, with a worker each.

        async with TestBus(provider) as bus:
            emission = provider.emit(remind, "ada", delay="3 days")
            await bus.advance("3 days")
            assert bus.ran[-1].name == "remind"

    Time moves by `advance`; and by itself where the test awaits an emission or a flow and nothing else can
    run.
    """

    __test__ = False

    def __init__(
        self,
        *providers: EventProvider,
        schedules: bool = False,
        start: datetime = _START,
        seed: int = 0,
        lease: Duration = "1m",
        leaps: bool = True,
    ) -> None:
        """Take the providers of a program, which must not run.

        `schedules` puts the declared schedules into the server; `start` is the time at first; `seed` makes
        ids and jitter; `lease` holds for all workers. Without `leaps`, upkeep comes as often as in
        production, so a month takes seconds. Raises UsageError for a naive `start`.
        """
        if not providers:
            raise UsageError("expected a provider, as in TestBus(provider)")
        self._start = to_unix_ms(start) // 1000
        self._providers = providers
        self._schedules = schedules
        self._seed = seed
        self._lease = seconds(lease, setting="lease")
        self._leaps = leaps
        self._programs: list[_Program] = []
        self._emitted: list[tuple[str, Any]] = []
        self._failures: list[_Failure] = []
        self._killed: list[float] = []
        self._exits = AsyncExitStack()
        self._main: asyncio.Task[Any] | None = None
        self.ran: list[Run] = []
        """The runs of handlers and steps so far, in the order in which they began."""

    # Entering and leaving

    async def __aenter__(self) -> Self:
        """Begin. Raises UsageError for a loop that cannot be used, and for a provider that runs."""
        self._main = asyncio.current_task()
        self._time = VirtualTime(start=self._start, leaps=self._leaps)
        server = TestServer.get()
        async with AsyncExitStack() as exits:
            self._time.install()
            exits.callback(self._time.remove)
            server.clean()
            self._network = Network(self._time, server)
            add_scheme(SCHEME, lambda url: VirtualConnector(url, self._network))
            self._seed_chance(exits)
            self._time.is_busy, self._time.on_due = self._is_busy, self._on_due
            self._time.server_due, self._time.on_standstill = self._server_due, self._on_standstill
            await self.adopt(*self._providers, exits=exits)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the workers and providers, and give the loop its time back."""
        await self._exits.aclose()

    async def adopt(
        self, *providers: EventProvider, worker: bool = True, exits: AsyncExitStack | None = None
    ) -> None:
        """Take more providers in, each with a worker if it has handlers."""
        for provider in providers:
            life: Lifecycle = provider._life  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
            if life.emitter is not None:
                raise UsageError("the provider runs already; the bus starts it, so enter the bus first")
            settings = self._settings_for(provider.settings)
            program = _Program(provider, life, settings, list(life.middleware), life.on_worker)
            (exits or self._exits).push_async_callback(self._end, program)
            self._programs.append(program)
            life.middleware.append(self._around)
            if not self._schedules:
                life.on_worker = None
            await life.start(settings)
            self._watch_emits(life)
            if worker and provider.queues:
                await self._begin_worker(program)

    def _settings_for(self, settings: Settings) -> Settings:
        return dataclasses.replace(
            settings,
            url=f"{SCHEME}://{settings.prefix}",
            lease=self._lease,
            hang_after=max(settings.hang_after, 6 * self._lease),
            durability="default",
        )

    async def _end(self, program: _Program) -> None:
        life = program.life
        try:
            await life.stop(is_patient=True)
        finally:
            life.middleware[:] = program.middleware
            life.on_worker = program.on_worker

    def _seed_chance(self, exits: AsyncExitStack) -> None:
        drawn, kept = random.Random(self._seed), (chance.token, chance.jitter)
        chance.token, chance.jitter = lambda count: drawn.randbytes(count).hex(), drawn.random

        def put_back() -> None:
            chance.token, chance.jitter = kept

        exits.callback(put_back)

    # Workers

    async def start_worker(self, provider: EventProvider | None = None) -> None:
        """Start the worker of a provider, by default of the only one."""
        await self._begin_worker(self._find(provider))

    async def stop_worker(self, provider: EventProvider | None = None) -> None:
        """Stop a worker in an orderly way: handlers finish within the grace."""
        program = self._find(provider)
        if program.worker is not None:
            await program.life.end_worker(program.worker)
        program.worker = program.node = None

    def kill_worker(self, provider: EventProvider | None = None) -> None:
        """End a worker as `kill -9` does: nothing of it runs any more, and its leases run out."""
        program = self._find(provider)
        if program.node is None:
            raise UsageError("no worker runs; start one with start_worker()")
        program.node.kill()
        program.life.abandon_worker()
        self._killed.append(self._time.now)
        program.worker = program.node = None

    async def _begin_worker(self, program: _Program) -> None:
        node = Node(self._time, "worker")
        life = program.life
        registry = program.provider._registry  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        chosen = life.choose(registry, ["*"])
        starting = self._time.loop.create_task(
            life.start_worker(program.settings, *chosen), context=node.context.copy()
        )
        program.worker = await starting
        program.node = node

    def _find(self, provider: EventProvider | None) -> _Program:
        found = [each for each in self._programs if provider is None or each.provider is provider]
        if len(found) != 1:
            raise UsageError(f"expected one of the {len(self._programs)} providers of the bus, name it")
        return found[0]

    def _is_busy(self) -> bool:
        """Whether leases must be kept, or run out, on time."""
        return any(each.worker is not None and each.worker.is_running for each in self._programs) or any(
            self._time.now - at < 4 * self._lease for at in self._killed
        )

    def _server_due(self) -> float | None:
        now, dues = self._time.server_us() // 1000, list[float]()
        for key in {each.life.store.keys.shard_key("due") for each in self._programs if each.life.store}:
            (found,) = self._network.look(
                ("ZRANGEBYSCORE", key, f"({now}", "+inf", "WITHSCORES", "LIMIT", 0, 1)
            )
            dues += [self._time.at_server_ms(float(found[1]))] if found else []
        return min(dues, default=None)

    def _on_due(self) -> None:
        for each in self._programs:
            if each.worker is not None and each.node is not None:
                each.node.context.copy().run(each.worker.look_due)

    # Time

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return datetime.fromtimestamp(self._time.server_us() / 1_000_000, UTC)

    async def settle(self) -> None:
        """Run until nothing is due now."""
        await self._time.settle()

    async def advance(self, duration: Duration) -> None:
        """Let time pass, and run what falls due on the way, in its order; then settle.

        Raises UsageError for a duration below 0.
        """
        passed = seconds(duration, setting="duration")
        if passed < 0:
            raise UsageError(f"expected a duration of 0 or more, got: {shown(duration)}")
        await self._time.advance(passed)

    def hold(self) -> AbstractContextManager[None]:
        """Let time stand while the block waits for something real, such as a database or a process."""
        return self._time.hold()

    def _on_standstill(self) -> None:
        """Raise in the test that everything waits."""
        tasks = [task for task in asyncio.all_tasks(self._time.loop) if not _is_ours(task)]
        error = TimeStandsStill(
            "everything waits, and nothing is due, so time would stand for ever. Waiting: "
            + "; ".join(sorted(map(_describe, tasks)))
        )
        waiting = [self._main] if self._main in tasks else tasks
        futures = [each for each in map(waits_for, waiting) if each is not None]
        if not futures:
            raise error
        for future in futures:
            future.set_exception(error)

    # Faults

    def fail(self, event: Event[Any, Any] | str, error: Exception | None = None, times: int = 1) -> None:
        """Have the next runs of an event's handlers, or of a step, fail with an error."""
        self._failures.append(_Failure(_name(event), error or ConnectionError("told to fail"), times))

    def lose_connections(self) -> None:
        """Cut all connections; they are opened again."""
        self._network.lose_connections()

    async def server_away(self, duration: Duration) -> None:
        """Have nobody reach the server for a while; return when it is back."""
        self._network.is_away = True
        self._network.lose_connections()
        try:
            await self._time.advance(seconds(duration, setting="duration"))
        finally:
            self._network.is_away = False

    # What happened

    def emitted(self, event: Event[Any, Any] | str) -> list[Any]:
        """Return the payloads that were emitted of an event, in their order."""
        return [payload for name, payload in self._emitted if name == _name(event)]

    async def _around(self, payload: Any, ctx: Any, call_next: Callable[[Any], Any]) -> Any:
        name = _name(ctx.event)
        self.ran.append(Run(name, ctx.attempt, self.now))
        for each in self._failures:
            if each.name == name and each.times > 0:
                each.times -= 1
                raise each.error
        return await call_next(payload)

    def _watch_emits(self, life: Lifecycle) -> None:
        emitter: Any = life.emitter
        emit = emitter.emit

        def watched(route: Any, payload: Any, *rest: Any, **options: Any) -> Any:
            emission = emit(route, payload, *rest, **options)
            self._emitted.append((route.name, payload))
            return emission

        emitter.emit = watched


def _name(event: Event[Any, Any] | str) -> str:
    return event if isinstance(event, str) else event.name


def _is_ours(task: asyncio.Task[Any]) -> bool:
    """Whether a task belongs to the product, which always waits for something."""
    return all(map(_is_library, _frames(task)))


def _frames(task: asyncio.Task[Any]) -> list[Any]:
    """Return the frames of the coroutines in which a task waits, the outermost first."""
    frames: list[Any] = []
    waits: Any = task.get_coro()
    while waits is not None and (frame := getattr(waits, "cr_frame", None)) is not None:
        frames.append(frame)
        waits = waits.cr_await
    return frames


def _describe(task: asyncio.Task[Any]) -> str:
    theirs = [frame for frame in _frames(task) if not _is_library(frame)]
    where = f"{theirs[-1].f_code.co_filename}:{theirs[-1].f_lineno}" if theirs else "its end"
    return f"{task.get_name()} at {where}"


def _is_library(frame: Any) -> bool:
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in ("eventbus", "workflows", "anyio", "asyncio")
