"""TestBus: a user's program in virtual time, on a private server.

    made -> entered (its providers run, each with a worker) -> left (all as before)

The program stays as it is: its providers start with other settings (the server, the lease), each in the
test's own event loop. A worker runs in a node of its own, so that it can be killed.

What must always hold: whatever the bus changes in a provider, it puts back; what is left of an earlier bus
does not reach the next one; an error of a start leaves nothing behind; a name that means nothing is
refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import difflib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast, overload

from eventbus.errors import EventBusError, ProviderStopped, UsageError
from eventbus.handlers.context import EventContext
from eventbus.handlers.middleware import CallNext
from eventbus.handlers.steering import RunFacts, Steered, SteeringTarget
from eventbus.handlers.subscriptions import Subscription, Subscriptions
from eventbus.handlers.worker import EventWorker, consumer_of, end_threads, is_running, look_due
from eventbus.lifecycle import Lifecycle
from eventbus.model import chance
from eventbus.model.clock import to_unix_ms
from eventbus.model.durations import Duration, seconds
from eventbus.model.event import Event
from eventbus.model.names import DEFAULT_GROUP, event_of, queue_name, shown
from eventbus.provider import EventProvider
from eventbus.settings.settings import Settings
from eventbus.store.connection.connector import add_scheme
from eventbus.telemetry.change import Change
from eventbus.telemetry.propagation import current
from eventbus.testing.answers import Answer, Answerable, FlowToSignal, FlowToTrigger
from eventbus.testing.lone_run import run_alone
from eventbus.testing.loop_parts import waits_for
from eventbus.testing.network import SCHEME, Network, VirtualConnector
from eventbus.testing.nodes import NODE, Node, is_dead
from eventbus.testing.records import (
    EmissionRecord,
    EmittedPayloads,
    Run,
    Where,
    copy_of,
    delay_of,
    describe_misses,
    find_emission,
)
from eventbus.testing.server import TestServer
from eventbus.testing.standstill import TimeStandsStill, describe_jobs, describe_task, is_of_library
from eventbus.testing.thread_processes import HeldProcesses, ThreadProcesses
from eventbus.testing.virtual_time import VirtualTime

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

_START = datetime(2030, 1, 1, tzinfo=UTC)
_EARLIEST = 1971
"""The first year that a test may begin in: times before 1970 are none to the server."""
_WORK = 70.0
"""Seconds that a drain lets pass at a time while a job runs and nothing is due."""
_NOTHING: Any = object()

seeds_used: list[int] = []
"""The seeds of the buses that were entered, for whoever reports a failed test; it may be cleared."""


class Drained(NamedTuple):
    """How many jobs workers ended during `drain`, by their outcome."""

    completed: int
    failed: int
    cancelled: int


class Fake:
    """What stands for a handler, a step or a task, until the bus is left or `end` is called."""

    def __init__(self, target: _Named, returns: Any, raises: Exception | None) -> None:
        self.calls: list[Any] = []
        """What each call got: the payload of an event, the input of the flow of a step, the arguments of a
        task, the payload or the state of a transition.
        """
        self.target = target
        self.is_over: bool = False
        self._returns = returns
        self._raises = raises

    def call(self, value: Any) -> Any:
        """Return the result, or raise the error."""
        self.calls.append(value)
        if self._raises is not None:
            raise self._raises
        return self._returns

    def end(self) -> None:
        """Let the function itself run again."""
        self.is_over = True


@dataclasses.dataclass
class _Program:
    """One provider in the bus."""

    provider: EventProvider
    life: Lifecycle
    settings: Settings
    registry: Subscriptions
    node: Node | None = None
    worker: EventWorker | None = None

    @property
    def steered(self) -> list[Steered]:
        return [each for each in self.life.extensions if isinstance(each, Steered)]


class _Named:
    """What a test has named: functions of programs. One function may have several events, and several
    programs may have one event.
    """

    def __init__(self, targets: list[tuple[_Program, SteeringTarget]]) -> None:
        self._targets = targets

    def matches(self, program: _Program, name: str) -> bool:
        return any(one is program and target.matches(name) for one, target in self._targets)

    def check(self, value: Any) -> None:
        """Raise PayloadError, or UsageError, unless each of them may return such a value."""
        for _, target in self._targets:
            target.check(value)


@dataclasses.dataclass
class _Failure:
    target: _Named
    error: Exception
    left: int


class TestBus:
    """Runs providers in virtual time, with a worker each.

        async with TestBus(provider) as bus:
            emission = provider.emit(remind, "ada", delay="3 days")
            await bus.advance("3 days")
            assert bus.ran[-1].name == "remind"

    Time moves by `advance`; and by itself where the test awaits an emission or a flow and nothing else can
    run.

    Where a method takes what is `named`, that is an Event, the function of a handler, a step, a task, a
    transition, a rollback, or the name that `bus.ran` has for it. It raises UsageError, with the names that
    are near, for anything that the providers do not have.
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
        processes: bool = False,
    ) -> None:
        """Take the providers of programs, which must not run.

        `schedules` puts the declared schedules into the server; `start` is the time at first, aware; `seed`
        makes ids and jitter; `lease` holds for all workers. Without `leaps`, upkeep comes as often as in
        production, so an hour takes about a second. Handlers and steps with a pool of processes run in
        threads, unless `processes` asks for real ones. Raises UsageError for an option that cannot be meant.
        """
        for provider in providers or (None,):
            if not isinstance(provider, EventProvider):
                raise UsageError(f"expected a provider, as in TestBus(provider), got: {shown(provider)}")
        if not isinstance(cast("object", start), datetime) or start.tzinfo is None or start.year < _EARLIEST:
            raise UsageError(
                f"expected start to be a datetime from {_EARLIEST} on with a time zone, as in "
                f"datetime(2030, 1, 1, tzinfo=UTC), got: {shown(start)}"
            )
        if not isinstance(cast("object", seed), int):
            raise UsageError(f"expected seed to be an integer, got: {shown(seed)}")
        self._start = to_unix_ms(start) / 1000
        self._providers = providers
        self._schedules = schedules
        self._seed = seed
        self._lease = _check_duration(lease, "lease", least=0.001)
        self._leaps = leaps
        self._has_processes = processes
        self._exits = AsyncExitStack()
        self._is_entered = False
        self._forget()

    def _forget(self) -> None:
        self._programs: list[_Program] = []
        self._emissions: list[EmissionRecord[Any]] = []
        self._failures: list[_Failure] = []
        self._fakes: list[Fake] = []
        self._passed: list[tuple[str, str]] = []
        """(flow, name) of each run that returned, and (flow or step, event) of each emission."""
        self._answers: list[Answer] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._ended: Counter[tuple[str, str]] = Counter()
        """(queue, outcome) of the jobs that workers have ended."""
        self._killed: list[float] = []
        self._heard: asyncio.Event = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None
        self._report: asyncio.Task[None] | None = None
        self._fatal: TimeStandsStill | None = None
        self.ran: list[Run] = []
        """The runs so far of handlers, steps, tasks, transitions, rollbacks and hooks, in the order in which
        they began.
        """

    # Entering and leaving

    async def __aenter__(self) -> Self:
        """Begin. Raises UsageError for a loop that cannot be used, for a provider that runs, and if there
        is no server.
        """
        if self._is_entered:
            raise UsageError("this TestBus is entered already; make another one")
        self._forget()
        self._main = asyncio.current_task()
        self._time = VirtualTime(start=self._start, leaps=self._leaps)
        server = TestServer.get()
        async with AsyncExitStack() as exits:
            self._time.install()
            exits.callback(self._time.remove)
            server.clean()
            exits.callback(server.clean)
            self._network = Network(self._time, server)
            add_scheme(SCHEME, lambda url: VirtualConnector(url, self._network))
            self._seed_chance(exits)
            self._outside = contextvars.copy_context()
            self._outside.run(NODE.set, None)
            self._time.is_busy, self._time.on_due = self._is_busy, self._on_due
            self._time.server_due, self._time.on_standstill = self._server_due, self._on_standstill
            self._time.patience = max(self._time.patience, 5 * self._lease)
            for provider in self._providers:
                await self._adopt(provider, worker=True, exits=exits)
            self._exits = exits.pop_all()
        self._is_entered = True
        seeds_used.append(self._seed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the workers and providers, and give the loop its time back. Raises the error of an answer."""
        try:
            if error is None:
                if self._sending:
                    await self.settle()
                self._raise_answers()
        finally:
            self._is_entered = False
            for task in self._sending:
                task.cancel()
            await self._exits.__aexit__(kind, error, trace)

    async def adopt(self, *providers: EventProvider, worker: bool = True) -> None:
        """Take more providers in, each with a worker if it has handlers; without `worker` only to emit.

        Several of them are several programs on one server. Raises UsageError for one that runs.
        """
        self._check_entered("adopt a provider")
        for provider in providers:
            await self._adopt(provider, worker=worker, exits=self._exits)

    async def _adopt(self, provider: EventProvider, *, worker: bool, exits: AsyncExitStack) -> None:
        life: Lifecycle = provider._life  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        if life.emitter is not None:
            raise UsageError(
                f"the provider {provider.settings.name!r} runs already; the bus starts it, so enter the "
                "bus first"
            )
        registry = provider._registry  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        program = _Program(provider, life, self._settings_for(provider.settings), registry)
        async with AsyncExitStack() as own:
            own.callback(self._change(program))
            await self._start_program(program, own, worker=worker)
            exits.push_async_exit(own.pop_all())
        self._programs.append(program)

    async def _start_program(self, program: _Program, own: AsyncExitStack, *, worker: bool) -> None:
        life = program.life
        own.push_async_callback(life.stop, is_patient=True)
        await life.start(program.settings)
        self._watch_emits(life)
        if worker and program.provider.queues:
            await self._begin_worker(program)

    def _change(self, program: _Program) -> Callable[[], None]:
        """Change a provider for the test; return what puts all back."""
        life = program.life
        middleware, on_worker, make_processes = list(life.middleware), life.on_worker, life.make_processes

        async def around(payload: Any, ctx: EventContext, call_next: CallNext) -> Any:
            name = ctx.event if ctx.group == DEFAULT_GROUP else f"{ctx.event}@{ctx.group}"
            return await self._seen(program, payload, RunFacts(name, "", ctx.attempt), call_next)

        life.middleware.append(around)
        life.listeners.add(("completed", "failed", "cancelled"), self._note_end, scope=None)
        life.make_processes = partial(HeldProcesses, self._time) if self._has_processes else ThreadProcesses
        if not self._schedules:
            life.on_worker = None
        removals = [each.steer(partial(self._seen, program)) for each in program.steered]

        def put_back() -> None:
            for remove in removals:
                remove()
            life.middleware[:] = middleware
            life.listeners.discard(self._note_end)
            life.on_worker, life.make_processes = on_worker, make_processes

        return put_back

    def _settings_for(self, settings: Settings) -> Settings:
        return dataclasses.replace(
            settings,
            url=f"{SCHEME}://{settings.prefix}",
            lease=self._lease,
            hang_after=max(settings.hang_after, 6 * self._lease),
            durability="default",
        )

    def _seed_chance(self, exits: AsyncExitStack) -> None:
        drawn, kept = random.Random(self._seed), (chance.token, chance.jitter)
        chance.token, chance.jitter = lambda count: drawn.randbytes(count).hex(), drawn.random

        def put_back() -> None:
            chance.token, chance.jitter = kept

        exits.callback(put_back)

    def _check_entered(self, verb: str) -> None:
        if not self._is_entered:
            raise UsageError(
                f"cannot {verb}: the bus is not entered; write `async with TestBus(...) as bus:`"
            )

    # Workers

    async def start_worker(self, provider: EventProvider | None = None) -> None:
        """Start the worker of a provider, by default of the only one. Raises UsageError if one runs."""
        self._check_entered("start a worker")
        program = self._find(provider)
        if program.worker is not None:
            raise UsageError("the worker of this provider runs already; a provider has one at a time")
        await self._begin_worker(program)

    async def stop_worker(self, provider: EventProvider | None = None) -> None:
        """Stop a worker in an orderly way: handlers finish within the grace."""
        self._check_entered("stop a worker")
        program = self._find(provider)
        if program.worker is not None:
            await program.life.end_worker(program.worker)
        program.worker = program.node = None

    def kill_worker(self, provider: EventProvider | None = None) -> None:
        """End a worker as `kill -9` does: nothing of it runs any more, and its leases run out."""
        self._check_entered("kill a worker")
        program = self._find(provider)
        if program.node is None or program.worker is None:
            raise UsageError("no worker runs; start one with start_worker()")
        program.node.kill()
        end_threads(program.worker)
        program.life.abandon_worker()
        self._killed.append(self._time.now)
        program.worker = program.node = None

    async def _begin_worker(self, program: _Program) -> None:
        node = Node(self._time, "worker")
        life = program.life
        chosen = life.choose(program.registry, ["*"])
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
        return any(each.worker is not None and is_running(each.worker) for each in self._programs) or any(
            self._time.passed_since(at) < 4 * self._lease for at in self._killed
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
                each.node.context.copy().run(look_due, each.worker)

    # Time

    @property
    def now(self) -> datetime:
        """The virtual time; that of the end once the bus is left. Raises UsageError before it is entered."""
        if not hasattr(self, "_time"):
            self._check_entered("tell the time")
        return datetime.fromtimestamp(self._time.server_us() / 1_000_000, UTC)

    async def settle(self) -> None:
        """Run until nothing is due now. Raises the error of an answer (`signal_when`) that was refused."""
        self._check_entered("settle")
        await self._time.settle()
        while self._sending:
            await asyncio.wait(self._sending)
            await self._time.settle()
        self._raise_answers()

    async def advance(self, duration: Duration) -> None:
        """Let time pass, and run what falls due on the way, in its order; then settle.

        Raises UsageError for a duration below 0, and as `settle`.
        """
        self._check_entered("let time pass")
        await self._time.advance(_check_duration(duration, "duration"))
        await self.settle()

    def hold(self) -> AbstractContextManager[None]:
        """Let time stand while the block waits for something real, such as a database or a process."""
        self._check_entered("let time stand")
        return self._time.hold()

    async def drain(self, event: Event[Any, Any] | str | None = None) -> Drained:
        """Run all jobs that wait, of an event or of all queues, and return how many ended so, by outcome.

        Time passes for what runs, for what is retried, and for what a limit holds back. Emissions that are
        delayed, paused queues, queues that no worker serves, and flows that sleep are left. Cancelled ones
        count if a worker ended them.
        """
        self._check_entered("drain")
        name = None if event is None else _name_of(event)
        before = Counter(self._ended)
        await self.settle()
        alone = 0.0
        while await self._has_work(name):
            due = self._time.next_due()
            if due is not None:
                alone = 0.0
                await self.advance(max(0.001, due - self._time.now))
                continue
            if alone >= self._time.patience:
                self._on_standstill()
            alone += _WORK
            await self.advance(_WORK)
        ended = Counter[str]()
        for (queue, outcome), count in (self._ended - before).items():
            if name is None or event_of(queue.partition("@")[0]) == name:
                ended[outcome] += count
        return Drained(ended["completed"], ended["failed"], ended["cancelled"])

    async def _has_work(self, event: str | None) -> bool:
        """Whether a job waits that a worker may run, or runs, or waits for a retry."""
        for program in self._by_prefix():
            inspector = program.provider.inspector
            for queue in await inspector.queues.list():
                if event not in (None, queue.event):
                    continue
                if queue.active or (queue.waiting and queue.paused is None and queue.workers):
                    return True
                cursor: str | None = ""
                while queue.delayed and cursor is not None:
                    page = await inspector.jobs.list(
                        queue.name, state="delayed", limit=1000, cursor=cursor or None
                    )
                    if any(job.attempts for job in page.jobs):
                        return True
                    cursor = page.cursor
        return False

    def _by_prefix(self) -> list[_Program]:
        """Return one program for each prefix: those of one prefix share their queues."""
        return list({program.settings.prefix: program for program in self._programs}.values())

    def _on_standstill(self) -> None:
        """Ask the server what waits there; without an answer, go without."""
        if self._fatal is not None:
            raise self._fatal
        if self._report is None or self._report.done():
            self._report = self._time.loop.create_task(self._tell_jobs(), context=self._outside.copy())
        else:
            self._report.cancel()
            self._tell_standstill([])

    async def _tell_jobs(self) -> None:
        self._tell_standstill(await describe_jobs(each.provider for each in self._programs))

    def _tell_standstill(self, jobs: list[str]) -> None:
        """Raise in the test that everything waits."""
        nodes = {task for each in self._programs if each.node is not None for task in each.node.tasks}
        every = [task for task in asyncio.all_tasks(self._time.loop) if not is_of_library(task)]
        answers = [f"the answer {each!r}" for each in self._answers if not each.is_sent]
        error = TimeStandsStill(
            "everything waits, and nothing is due, so time would stand for ever. Waiting: "
            + "; ".join([*sorted(map(describe_task, every)), *answers, *jobs])
        )
        tasks = [self._main] if self._main in every else [task for task in every if task not in nodes]
        futures = [future for task in tasks if (future := waits_for(task)) is not None]
        if not futures:
            self._fatal = error
        for future in futures:
            future.set_exception(error)

    # Faults

    def fail(self, named: object, error: Exception | None = None, times: int = 1) -> None:
        """Have the next runs of a handler, a step, a task, a transition or a rollback fail with an error.

        They fail before the function is called. `error` is a ConnectionError by default; it is retried as its
        rule says. Raises UsageError for a name that means nothing, and for `times` below 1.
        """
        told = ConnectionError("told to fail") if error is None else error
        if not isinstance(cast("object", told), Exception):
            raise UsageError(
                f"expected error to be an exception, such as ConnectionError(), got: {shown(error)}"
            )
        _check_times(times)
        self._failures.append(_Failure(self._target(named), told, times))

    def replace(self, named: object, *, returns: Any = _NOTHING, raises: Exception | None = None) -> Fake:
        """Have runs of a handler, a step, a task or a transition return a value, or raise an error, without a
        call of the function.

            charge = bus.replace(charge_card, returns="p-1")

        Middleware runs as ever. The fake holds until the bus is left, or until its `end()`; of several the
        last one counts. `calls` of the returned fake has what each run got. Raises PayloadError for a value
        that does not fit the annotated type, and UsageError unless one of the two is given.
        """
        if (returns is _NOTHING) == (raises is None):
            raise UsageError("expected either returns=... or raises=... for what is replaced")
        if raises is not None and not isinstance(cast("object", raises), Exception):
            raise UsageError(
                f"expected raises to be an exception, such as ValueError(), got: {shown(raises)}"
            )
        target = self._target(named)
        if raises is None:
            target.check(returns)
        fake = Fake(target, None if returns is _NOTHING else returns, raises)
        self._fakes.insert(0, fake)
        return fake

    def lose_connections(self) -> None:
        """Cut all connections; they are opened again."""
        self._check_entered("cut connections")
        self._network.lose_connections()

    async def server_away(self, duration: Duration) -> None:
        """Have nobody reach the server for a while; return when it is back. Raises UsageError as
        `advance`.
        """
        self._check_entered("take the server away")
        passed = _check_duration(duration, "duration")
        self._network.is_away = True
        self._network.lose_connections()
        try:
            await self._time.advance(passed)
        finally:
            self._network.is_away = False

    # Jobs that wait

    async def keep(self, event: Event[Any, Any] | str) -> None:
        """Have the jobs of an event wait, in all its groups, until `release`; those that run end.

        It pauses the queues of the event, as `EventProvider.pause` does. Raises UsageError for an event
        without a handler in the bus.
        """
        for program, group in self._groups(event):
            await program.provider.pause(_name_of(event), group=group, reason="kept by the test")

    async def release(self, event: Event[Any, Any] | str) -> None:
        """Let the jobs of an event that are kept go, and run what can run now.

        Raises UsageError as `keep`, and as `settle`.
        """
        for program, group in self._groups(event):
            await program.provider.resume(_name_of(event), group=group)
        await self.settle()

    def _groups(self, event: Event[Any, Any] | str) -> list[tuple[_Program, str]]:
        self._check_entered("keep or release jobs")
        name = _name_of(event)
        found = {
            (program.settings.prefix, subscription.handler.group): program
            for program, subscription in self._subscriptions()
            if subscription.route.name == name
        }
        if not found:
            raise self._unknown(name)
        return [(program, group) for (_, group), program in found.items()]

    # One handler

    @overload
    async def run(self, event: Event[P, R], payload: P, *, group: str = ...) -> R: ...
    @overload
    async def run(self, event: str, payload: Any = ..., *, group: str = ...) -> Any: ...
    async def run(
        self, event: Event[Any, Any] | str, payload: Any = None, *, group: str = DEFAULT_GROUP
    ) -> Any:
        """Run the handler of an event as a worker runs it, without a queue; return its result.

        With codec, middleware, lifespans, timeout and retry rule: between attempts time passes. There is no
        job in the server, so a save is refused, and the result of a group of its own is None. Raises what an
        emitter would get, PayloadError, and UsageError if no worker of the bus has the handler, or if it is
        killed meanwhile. Of several providers with the event, the first one is meant.
        """
        self._check_entered("run a handler")
        name = _name_of(event)
        queue = queue_name(name, group)
        for program, subscription in self._subscriptions():
            if subscription.queue != queue or program.worker is None or program.node is None:
                continue
            consumer = consumer_of(program.worker, queue)
            if consumer is not None:
                route = subscription.route
                running = run_alone(consumer, route, route.encode_payload(payload))
                result = await self._outlive(program.node, running)
                return route.decode_result(result) if group == DEFAULT_GROUP else None
        if any(subscription.queue == queue for _, subscription in self._subscriptions()):
            raise UsageError(f"no worker of the bus serves {name}; start one with start_worker()")
        raise self._unknown(name if group == DEFAULT_GROUP else f"{name}@{group}")

    async def _outlive(self, node: Node, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a node. Raises UsageError if the node is killed."""
        running = self._time.loop.create_task(coro, context=node.context.copy())
        try:
            await asyncio.wait((running, node.death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not running.done() and not node.is_dead:
                running.cancel()
                await asyncio.wait((running,))
        if node.is_dead:
            raise UsageError("the worker was killed while it ran the handler")
        return running.result()

    # Answers

    def signal_when(
        self, flow: FlowToSignal, signal: Answerable[T], payload: T, *, after: object, times: int = 1
    ) -> Answer:
        """Send a signal to a flow once it has come to a point of its story: a stand-in for the person who
        answers.

            bus.signal_when(flow, approved, True, after=remind, times=2)   # after two reminders

        `after` is a step or a task of the flow that has returned `times` times, or an Event that the flow
        has emitted so often; what it did before the call counts. The signal is sent at the first moment
        then at which nothing else is due, so the flow waits for it by then if it ever does. `is_sent` of
        the returned answer tells whether it was. If the flow refuses the signal, `settle`, `advance` or the
        end of the bus raises that error. Raises PayloadError for a payload that does not fit, and
        UsageError for a point that means nothing.
        """
        _check_answerable(signal, "a Signal, such as Signal('approved', bool)")
        signal.encode(payload)
        what = f"signal {signal.name} after {times} x {_shown_name(after)}"
        return self._answer(what, flow.id, after, times, partial(flow.signal, signal, payload))

    def trigger_when(
        self, flow: FlowToTrigger, transition: Answerable[T], payload: T, *, after: object, times: int = 1
    ) -> Answer:
        """Fire a transition of a state machine that waits, once the flow has come to a point of its story.

            bus.trigger_when(flow, Review.approve, "ada", after=Review.remind)

        As `signal_when`; `after` is a transition, or an Event.
        """
        _check_answerable(transition, "a transition that waits, such as Review.approve")
        transition.encode(payload)
        what = f"trigger {transition.name} after {times} x {_shown_name(after)}"
        return self._answer(what, flow.id, after, times, partial(flow.trigger, transition, payload))

    def _answer(self, what: str, flow_id: str, after: object, times: int, send: Callable[[], Any]) -> Answer:
        _check_times(times)
        is_point = after.name.__eq__ if isinstance(after, Event) else self._point(after)
        answer = Answer(what, flow_id, is_point, times, send)
        self._answers.append(answer)
        for flow, name in self._passed:
            if answer.note(flow, name):
                self._send(answer)
        return answer

    def _note_passed(self, flow_id: str, name: str) -> None:
        self._passed.append((flow_id, name))
        for answer in self._answers:
            if answer.note(flow_id, name):
                self._send(answer)

    def _send(self, answer: Answer) -> None:
        task = self._time.loop.create_task(self._send_soon(answer), context=self._outside.copy())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard, context=self._outside)

    async def _send_soon(self, answer: Answer) -> None:
        await self._time.settle()
        await answer.send()

    def _raise_answers(self) -> None:
        errors = [each.error for each in self._answers if each.error is not None]
        for answer in self._answers:
            answer.error = None  # told once
        if errors:
            raise errors[0]

    # What happened

    @overload
    def emitted(self, event: Event[P, Any]) -> EmittedPayloads[P]: ...
    @overload
    def emitted(self, event: str) -> EmittedPayloads[Any]: ...
    def emitted(self, event: Event[Any, Any] | str) -> EmittedPayloads[Any]:
        """Return the payloads that the providers emitted of an event, in their order, also of those that the
        server never got.

        Its `records` have the key, delay, meta, causation and correlation of each. What schedules emit is not
        among them: the server does that. `bus.ran` has it. Raises UsageError for a name that is like that of
        an event, and is none.
        """
        return EmittedPayloads(self._records_of(event))

    @overload
    async def expect(
        self, event: Event[P, Any], where: Where[P] | None = None, *, within: Duration = "1s"
    ) -> EmissionRecord[P]: ...
    @overload
    async def expect(
        self, event: str, where: Where[Any] | None = None, *, within: Duration = "1s"
    ) -> EmissionRecord[Any]: ...
    async def expect(
        self, event: Event[Any, Any] | str, where: Where[Any] | None = None, *, within: Duration = "1s"
    ) -> EmissionRecord[Any]:
        """Return the first emission of an event that is meant, since the begin of the bus; let time pass for
        `within` until there is one.

            await bus.expect(order_paid, {"id": 7}, within="1 day")

        `where` is a function of the payload, or the values of some of its fields. Raises AssertionError,
        which lists the payloads that came closest and in what they differ, and UsageError for `within`
        below 0.
        """
        self._check_entered("expect an emission")
        await self.settle()
        limit = _check_duration(within, "within")
        end = self._time.now + limit
        while (found := find_emission(self._records_of(event), where)) is None:
            self._heard.clear()
            try:
                async with asyncio.timeout_at(end):
                    await self._heard.wait()
            except TimeoutError:
                await self.settle()  # what falls due at the end counts
                found = find_emission(self._records_of(event), where)
                break
        if found is not None:
            return found
        records = self._records_of(event)
        misses = f"; near misses:{describe_misses(records, where)}" if records else ", and none at all"
        raise AssertionError(f"no emission of {_name_of(event)}{_told(where)} within {limit:g} s{misses}")

    @overload
    async def refuse(
        self, event: Event[P, Any], where: Where[P] | None = None, *, within: Duration = "1s"
    ) -> None: ...
    @overload
    async def refuse(
        self, event: str, where: Where[Any] | None = None, *, within: Duration = "1s"
    ) -> None: ...
    async def refuse(
        self, event: Event[Any, Any] | str, where: Where[Any] | None = None, *, within: Duration = "1s"
    ) -> None:
        """Let time pass for `within`, and check that no emission of an event that is meant was made since the
        begin of the bus.

        `where` as for `expect`. Raises AssertionError with the emission, and UsageError for `within` below 0.
        """
        await self.advance(_check_duration(within, "within"))
        found = find_emission(self._records_of(event), where)
        if found is not None:
            raise AssertionError(
                f"expected no emission of {_name_of(event)}{_told(where)}, but {shown(found.payload)} was "
                f"emitted at {found.at.isoformat()}"
                + (f" by job {found.causation_id}" if found.causation_id else "")
            )

    def _records_of(self, event: Event[Any, Any] | str) -> list[EmissionRecord[Any]]:
        name = _name_of(event)
        found = [record for record in self._emissions if record.event == name]
        if not found and isinstance(event, str):
            self._check_spelling(name)
        return found

    def _check_spelling(self, event: str) -> None:
        """Raise UsageError for the name of an event that nobody has, and that is like one."""
        known = {subscription.route.name for _, subscription in self._subscriptions()}
        known |= {record.event for record in self._emissions}
        near = difflib.get_close_matches(event, known, cutoff=0.8)
        if event not in known and near:
            raise UsageError(
                f"no event is named {shown(event)}; did you mean {' or '.join(map(repr, near))}?"
            )

    async def _seen(self, program: _Program, value: Any, facts: RunFacts, call_next: CallNext) -> Any:
        """Note a run; fail it, or fake it, if that was asked for."""
        self.ran.append(Run(facts.name, facts.attempt, self.now, facts.flow))
        for failure in self._failures:
            if failure.left > 0 and failure.target.matches(program, facts.name):
                failure.left -= 1
                raise failure.error
        for fake in self._fakes:
            if not fake.is_over and fake.target.matches(program, facts.name):
                result = fake.call(value)
                break
        else:
            result = await call_next(value)
        if facts.flow and not is_dead():
            self._note_passed(facts.flow, facts.name)
        return result

    async def _note_end(self, change: Change) -> None:
        self._ended[change.queue, change.what] += 1

    def _watch_emits(self, life: Lifecycle) -> None:
        emitter: Any = life.emitter
        emit, add_tree = emitter.emit, emitter.add_tree

        def watched(route: Any, payload: Any, options: Any, **more: Any) -> Any:
            _check_alive()
            emission = emit(route, payload, options, **more)
            ambient = current()
            given = options.idempotency_key
            self._emissions.append(
                EmissionRecord(
                    copy_of(payload),
                    route.name,
                    emission.job_id,
                    given if given is not None else "" if route.key is None else route.key(payload),
                    delay_of(options, self.now),
                    {**(ambient.meta or {}), **(options.meta or {})},
                    emission.correlation_id,
                    ambient.job_id,
                    options,
                    self.now,
                )
            )
            self._heard.set()
            if ambient.job_id:
                self._note_passed(_flow_of(ambient.job_id), route.name)
            return emission

        def add_watched(*args: Any, **given: Any) -> Any:
            _check_alive()
            return add_tree(*args, **given)

        emitter.emit, emitter.add_tree = watched, add_watched

    # Names

    def _subscriptions(self) -> Iterator[tuple[_Program, Subscription]]:
        return ((program, each) for program in self._programs for each in program.registry)

    def _target(self, named: object) -> _Named:
        """Return what is named. Raises UsageError if it is nothing that the providers have."""
        self._check_entered("name a function")
        found: list[tuple[_Program, SteeringTarget]] = []
        for program, subscription in self._subscriptions():
            route, label = subscription.route, _label(subscription)
            is_meant = (
                named.name == route.name
                if isinstance(named, Event)
                else named == label or named is subscription.handler.function
            )
            if is_meant:
                is_answer = subscription.handler.group == DEFAULT_GROUP
                check = route.result.encode if is_answer else _accept
                found.append((program, SteeringTarget(label, label.__eq__, check)))
        found += self._points(cast("object", named))
        if not found:
            raise self._unknown(_shown_name(named))
        return _Named(found)

    def _points(self, named: object) -> list[tuple[_Program, SteeringTarget]]:
        """Return which functions of flows are named."""
        targets = (
            (program, steered.find_target(named)) for program in self._programs for steered in program.steered
        )
        return [(program, target) for program, target in targets if target is not None]

    def _point(self, named: object) -> Callable[[str], bool]:
        """Return the test of a point in the story of a flow."""
        self._check_entered("name a function")
        found = self._points(named)
        if not found and any(named == each.route.name for _, each in self._subscriptions()):
            return named.__eq__  # the name of an event that the flow emits
        if not found:
            self._target(named)
            raise UsageError(
                f"{_shown_name(named)} is the handler of an event, and no point in the story of a flow; name "
                "a step or a task of the flow, or an Event that it emits"
            )
        return lambda name: any(target.matches(name) for _, target in found)

    def _unknown(self, name: str) -> UsageError:
        known = list(dict.fromkeys(self._names()))
        near = [each for each in known if each.rpartition(".")[2] == name.rpartition(".")[2]]
        near = near or difflib.get_close_matches(name, known)
        if near:
            hint = f"did you mean {' or '.join(map(repr, near[:3]))}?"
        else:
            hint = f"there are: {', '.join(sorted(known)[:20]) or 'none'}"
        return UsageError(f"nothing that the providers of the bus run is named {shown(name)}; {hint}")

    def _names(self) -> Iterator[str]:
        for _, subscription in self._subscriptions():
            yield _label(subscription)
        for program in self._programs:
            for steered in program.steered:
                yield from steered.targets


def _check_duration(duration: Duration, setting: str, *, least: float = 0) -> float:
    try:
        passed = seconds(duration, setting=setting)
    except EventBusError as error:
        raise UsageError(str(error)) from error
    if passed < least:
        raise UsageError(f"expected {setting} of {least:g} s or more, got: {shown(duration)}")
    return passed


def _check_answerable(given: object, expected: str) -> None:
    if isinstance(given, str) or not hasattr(given, "encode"):
        raise UsageError(f"expected {expected}, got: {shown(given)}")


def _check_times(times: object) -> None:
    if not isinstance(times, int) or times < 1:
        raise UsageError(f"expected times to be 1 or more, got: {shown(times)}")


def _name_of(event: Event[Any, Any] | str) -> str:
    if not isinstance(cast("object", event), (Event, str)):
        raise UsageError(f"expected an Event, or its name, got: {shown(event)}")
    return event if isinstance(event, str) else event.name


def _shown_name(named: Any) -> str:
    if isinstance(named, str):
        return named
    name = getattr(named, "name", None) or getattr(named, "__qualname__", None)
    return name if isinstance(name, str) else shown(named)


def _check_alive() -> None:
    if is_dead():
        raise ProviderStopped("this worker was killed, so it emits nothing any more")


def _label(subscription: Subscription) -> str:
    group = subscription.handler.group
    return subscription.route.name if group == DEFAULT_GROUP else f"{subscription.route.name}@{group}"


def _accept(_: Any) -> None:
    """What a group of its own returns reaches nobody."""


def _flow_of(job_id: str) -> str:
    """Return the id of the flow to which a job belongs; that of a step begins with it."""
    return job_id.partition("/")[0]


def _told(where: Where[Any] | None) -> str:
    if where is None:
        return ""
    code = getattr(where, "__code__", None)
    if code is None:
        return f" where {shown(where)}"
    return f" for which {code.co_name} of {code.co_filename}:{code.co_firstlineno} is true"
