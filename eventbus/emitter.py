"""The emitter's side of a running provider: ids, messages, outbox, completion tracker.

One object for one start; a provider that starts again gets a new one with a new id. Its
roles are started in one place and stopped in reverse: reader, keeper, timeouts, lookups,
outbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import anyio
import msgspec

from eventbus.ambient import current
from eventbus.clock import to_unix_ms
from eventbus.codec import Codec
from eventbus.completion import CompletionTracker
from eventbus.config import Settings
from eventbus.durations import Duration, milliseconds, seconds
from eventbus.emission import Emission, Reading
from eventbus.envelope import EventMessage, encode_bare, encode_message
from eventbus.errors import DefinitionError, PayloadError, ProviderStopped, StoreError, StoreUnavailable
from eventbus.logs import get_logger
from eventbus.names import check_key, shown
from eventbus.outbox import Letter, Outbox
from eventbus.planter import Planter
from eventbus.retry import Retry
from eventbus.route import Route
from eventbus.store.keys import key_digest
from eventbus.store.rows import JOIN, REUSE, SUPERSEDE
from eventbus.store.store import SHARD, Store
from eventbus.telemetry import send_context
from eventbus.tree import Tree, chunks_of

__all__ = ["EmitOptions", "Emitter"]

_log = get_logger("eventbus.provider")

_START_PATIENCE = 2.0
_STOP_PATIENCE = 5.0
_DEFAULT_DEADLINE = 30.0
_LOWEST, _HIGHEST = -4000, 4000


class EmitOptions(msgspec.Struct, frozen=True):
    """What one emission asks for beside its payload; None and UNSET are not given."""

    reply_timeout: Duration | msgspec.UnsetType | None = msgspec.UNSET
    delay: Duration | None = None
    at: datetime | None = None
    priority: int = 0
    idempotency_key: str | None = None
    meta: dict[str, Any] | None = None
    retry: Retry | None = None
    lifo: bool = False
    reply: bool | None = None
    reuse_failure: bool = False
    supersede: bool = False


class _Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the options of an emission come to, whatever its payload; times in ms, `''` for absent."""

    delay: int | str
    due: int | str
    wait: float
    """Seconds until it is due."""
    timeout: float | None
    """Seconds until the reply is overdue, from when it is due."""
    patience: float
    """Seconds that the server may stay away."""
    priority: int
    lifo: int
    is_choosy: bool
    """It does not simply join what its key stands for."""


class Emitter:
    """Everything that one started provider needs to emit."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.id = secrets.token_hex(6)
        self.store = store
        self._settings = settings
        self._tracker = CompletionTracker(store, self.id, key_ttl_ms=round(settings.key_ttl * 1000))
        self._outbox = Outbox(store, self._tracker, self.id)
        self._planter = Planter(store, self._tracker, self.id)
        self._meta = Codec(dict[str, Any], role="meta", owner="meta", max_bytes=settings.max_payload)
        self._count = 0
        self._planned = EmitOptions()
        self._plan = self._plan_for(self._planned)
        self._is_stopping = False
        self._roles: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def start(self) -> None:
        """Connect and start the roles.

        A server that is not there is not an error here: emissions wait for it within their
        own deadlines. Raises StoreRefused when it is there and cannot be used.
        """
        deadline = time.monotonic() + _START_PATIENCE
        try:
            await self.store.start(deadline=deadline, allow_eviction=self._settings.allow_eviction)
            await self._tracker.open(deadline=deadline)
        except StoreUnavailable as error:
            _log.warning("started without a server, trying on", error=str(error))
        self._roles = asyncio.create_task(self._run_roles(), name="eventbus-emitter")

    async def stop(self) -> None:
        """Tell every waiter, flush what is unsent, close. Takes 6 s at most."""
        self._is_stopping = True
        stopped = ProviderStopped("the provider stopped before the outcome came")
        self._tracker.dismiss(stopped)
        try:
            async with asyncio.timeout(_STOP_PATIENCE):
                await self._outbox.flush()
                await self._planter.aclose(_STOP_PATIENCE)
                await self._tracker.stop_reading()
        except (TimeoutError, StoreError) as error:
            _log.warning("stopping without the server", error=str(error) or "no answer in time")
        self._outbox.abandon()
        self._stop.set()
        if self._roles is not None:
            await asyncio.wait([self._roles])
        try:
            await self._tracker.aclose(stopped)
        except StoreError as error:
            _log.info("reply stream left to expire", error=str(error))

    async def flush(self) -> None:
        """Wait until everything emitted so far was answered or given up."""
        await self._outbox.flush()

    def emit(
        self, route: Route, payload: Any, options: EmitOptions, *, is_bounded: bool = True
    ) -> Emission[Any]:
        """Put one emission on its way; see `EventProvider.emit`."""
        if self._is_stopping:
            raise ProviderStopped(f"cannot emit {route.name}: the provider is stopping")
        if is_bounded:
            self._outbox.check_room(route.name)
        plan = self._plan if options is self._planned else self._plan_for(options)
        event = route.event
        reply = event.reply if options.reply is None else options.reply and event.default
        data = route.encode_payload(payload)
        self._count += 1
        job_id = f"{SHARD}-{self.id}-{self._count:08x}"
        key = self._key_of(route, payload, options)
        body, correlation_id = self._message(route, data, job_id, key, options)
        emission: Emission[Any] = Emission(
            route, self._tracker, job_id, correlation_id, plan.timeout, reply=reply
        )
        letter = Letter(
            emission,
            route,
            body,
            key_digest(key) if key else "",
            hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16] if key else "",
            (
                plan.delay,
                plan.due,
                plan.priority,
                plan.lifo,
                1 if reply else 0,
                _meeting(options, key) if plan.is_choosy else JOIN,
            ),
            time.monotonic() + plan.patience,
        )
        if reply:
            self._tracker.register(emission, delay=plan.wait)
        self._outbox.put(letter)
        return emission

    def _plan_for(self, options: EmitOptions) -> _Plan:
        """Work options out; those of the last emission are kept, for the next one's are mostly the same."""
        delay, due, wait = _due(options)
        timeout = self._reply_timeout(options)
        plan = _Plan(
            delay=delay,
            due=due,
            wait=wait,
            timeout=timeout,
            patience=timeout or _DEFAULT_DEADLINE,
            priority=_priority(options.priority),
            lifo=int(options.lifo),
            is_choosy=options.supersede or options.reuse_failure,
        )
        if options.at is None:  # else the wait gets shorter
            self._planned, self._plan = options, plan
        return plan

    def plant(self, tree: Tree, reading: Reading, *, correlation_id: str) -> Emission[Any]:
        """Put a tree on its way; its emission stands for the outcome of its root."""
        if self._is_stopping:
            raise ProviderStopped(f"cannot start {reading.name}: the provider is stopping")
        emission: Emission[Any] = Emission(reading, self._tracker, tree.id, correlation_id, None, reply=True)
        emission.keep_quiet()
        self._planter.put(emission, chunks_of(tree, reply=True), patience=_DEFAULT_DEADLINE)
        return emission

    async def result(self, route: Reading, job_id: str, reply_timeout: float | None) -> Any:
        """Wait for the outcome of any job; see `EventProvider.result`."""
        emission: Emission[Any] = Emission(route, self._tracker, job_id, job_id, reply_timeout, reply=True)
        deadline = time.monotonic() + (reply_timeout or _DEFAULT_DEADLINE)
        try:
            self._tracker.join(emission, job_id, "open", "")
            await self._tracker.look_up([job_id], deadline=deadline)
            if reply_timeout is not None and not emission.done():
                emission.bucket = self._tracker.deadlines.add(emission, reply_timeout)
            return await emission
        finally:
            self._tracker.drop(emission)

    async def cancel(self, job_id: str, reason: str, *, queue: str = "") -> bool:
        """Cancel any job; see `EventProvider.cancel`."""
        return await self._tracker.cancel(job_id, reason, queue=queue)

    async def _run_roles(self) -> None:
        async with anyio.create_task_group() as roles:
            for run in (
                self._tracker.run_reader,
                self._tracker.run_keeper,
                self._tracker.run_timeouts,
                self._tracker.run_lookups,
                self._outbox.run,
            ):
                roles.start_soon(_keep_running, run, name=run.__qualname__)
            await self._stop.wait()
            roles.cancel_scope.cancel()

    def _message(
        self, route: Route, data: bytes, job_id: str, key: str, options: EmitOptions
    ) -> tuple[str, str]:
        """Return the job's body and the correlation id."""
        ambient = current()
        traceparent, tracestate = send_context(route.name, route.queue, job_id, ambient)
        if not (
            ambient.correlation_id or ambient.meta or traceparent or key or options.meta or options.retry
        ):
            return encode_bare(data), job_id
        message = EventMessage(
            payload=msgspec.Raw(data),
            meta=self._merged_meta(ambient.meta, options.meta),
            correlation_id=ambient.correlation_id,
            causation_id=ambient.job_id,
            traceparent=traceparent,
            tracestate=tracestate,
            key=key,
            retry=None if options.retry is None else options.retry.to_wire(),
        )
        return encode_message(message), ambient.correlation_id or job_id

    def _merged_meta(self, outer: Any, inner: dict[str, Any] | None) -> dict[str, Any] | None:
        meta: dict[str, Any] = {**(outer or {}), **(inner or {})}
        if not meta:
            return None
        self._meta.encode(meta)
        return meta

    def _reply_timeout(self, options: EmitOptions) -> float | None:
        given = options.reply_timeout
        if given is msgspec.UNSET:
            return self._settings.reply_timeout
        return None if given is None else seconds(given, setting="reply_timeout") or None

    def _key_of(self, route: Route, payload: Any, options: EmitOptions) -> str:
        if options.idempotency_key is not None:
            return check_key(options.idempotency_key)
        if route.key is None:
            return ""
        try:
            key = route.key(payload)
        except Exception as error:
            raise PayloadError(
                f"the key function of {route.name} raised {type(error).__name__}: {error}", event=route.name
            ) from error
        return check_key(key)


async def _keep_running(role: Callable[[], Awaitable[None]]) -> None:
    """No error that nobody foresaw ends a role: those who wait would never hear of it."""
    while True:
        try:
            return await role()
        except Exception:  # noqa: BLE001  (whatever it is, it is logged and the role goes on)
            _log.exception("a role of the emitter failed, starting it again")
            await asyncio.sleep(1)


def _due(options: EmitOptions) -> tuple[int | str, int | str, float]:
    """Return delay (ms), absolute due time (ms), and the seconds until then."""
    if options.delay is not None:
        if options.at is not None:
            raise DefinitionError("expected either delay or at, got both")
        delay = milliseconds(options.delay, setting="delay")
        return (delay or "", "", delay / 1000)
    if options.at is not None:
        due = to_unix_ms(options.at)
        return ("", due, max(0.0, due / 1000 - time.time()))
    return ("", "", 0.0)


def _meeting(options: EmitOptions, key: str) -> int:
    """What happens when the key stands for a job already; see the header of `add.lua`."""
    if options.supersede:
        if options.reuse_failure:
            raise DefinitionError("expected either supersede or reuse_failure, got both")
        if not key:
            raise DefinitionError(
                "supersede needs a key: give idempotency_key, or the event a key function that returns one"
            )
        return SUPERSEDE
    return REUSE if options.reuse_failure else JOIN


def _priority(priority: Any) -> int:
    if type(priority) is not int or not _LOWEST <= priority <= _HIGHEST:
        raise DefinitionError(
            f"expected priority to be a whole number from {_LOWEST} to {_HIGHEST}, got: {shown(priority)}"
        )
    return priority
