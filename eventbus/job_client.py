"""The job client: trees of jobs, checkpoints, and consumers that are not event handlers.

It is a part of the low-level API (`eventbus.lowlevel`), for systems built on top. An extension brings
consumers. They run in the provider's workers beside its handlers, under the same leases, limits and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from eventbus.emit.emission import Emission, OutcomeDecoder
from eventbus.emit.job_tree import Member, Tree, spawn_calls
from eventbus.engine.job import Job
from eventbus.engine.listening import listen
from eventbus.errors import SignalRefused, StoreCorrupt, StoreRefused, UnknownJob, UsageError
from eventbus.handlers.extension import Extension
from eventbus.lifecycle import Lifecycle
from eventbus.model import chance, clock
from eventbus.model.durations import Duration
from eventbus.model.names import shown
from eventbus.model.recorded_texts import check_append, check_signal_id, check_text
from eventbus.runtime.turnstiles import Turnstiles
from eventbus.settings.settings import Settings
from eventbus.store.bounds import CALL_ROWS
from eventbus.store.calls.journal_store import SentSignal
from eventbus.store.calls.tree_store import RootPlace, RootRow, TreePage
from eventbus.store.keys import key_digest, payload_digest
from eventbus.store.scripting.script_rows import Outcome, SaveRow, Wait

_JOURNAL_PAGE = 500
_ENVELOPE = 16 << 10  # bytes that an entry may have around a value
_PATIENCE = 30.0
"""Seconds for a call of a consumer; not `reply_timeout`, which may be short although nobody waits here."""


class JobClient:
    """Adds, reads, cancels and retries trees of jobs in the server of a started provider.

    Each method raises ProviderStopped while the provider is not started, and StoreError when the server does
    not answer in time. Calls for users take a `call_timeout`, by default the provider's `reply_timeout`; or a
    `deadline` by the monotonic clock, so that several calls may share one (`settings.deadline`). Calls that a
    consumer makes under its lease have 30 s, whatever timeouts users chose, because a worker makes them and
    no user waits.
    """

    def __init__(self, life: Lifecycle, settings: Settings) -> None:
        self._life = life
        self._reading = Turnstiles()
        self.settings = settings
        self._most_text = max(settings.max_result, settings.max_payload) + _ENVELOPE

    def attach(self, extension: Extension) -> None:
        """Run the consumers of an extension in the workers that start from now on."""
        self._life.extensions.append(extension)

    @property
    def has_worker(self) -> bool:
        """Whether a worker of the provider runs in this process."""
        return self._life.worker is not None

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return the object that a lifespan of this process's worker yielded. Raises UsageError."""
        worker = self._life.worker
        if worker is None:
            raise UsageError("nothing is shared here: no worker of this provider runs in this process")
        return worker.host.shared(lifespan)

    def add(
        self,
        tree: Tree,
        reading: OutcomeDecoder,
        *,
        correlation_id: str = "",
        call_timeout: Duration | None = None,
    ) -> Emission[Any]:
        """Add a tree and return an emission for the outcome of its root, without waiting.

        If the idempotency key of the root meets a root in the server, the emission is for that one's outcome.
        `await emission.enqueued()` raises EmitError when the tree could not be added.
        """
        emitter = self._life.running(f"start {reading.name}")
        correlation_id = correlation_id or tree.id
        return emitter.add_tree(tree, reading, correlation_id=correlation_id, call_timeout=call_timeout)

    async def result(
        self,
        job_id: str,
        reading: OutcomeDecoder,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Wait for the outcome of a job, at most `timeout` seconds; None: without limit.

        Raises the error that `reading` makes of a failure, UnknownJob and ResponseTimeout.
        """
        return await self._life.running("wait for a result").result(reading, job_id, timeout)

    async def cancel(self, job_id: str, reason: str, *, call_timeout: Duration | None = None) -> bool:
        """Cancel a job, or a root with its tree. Raises UnknownJob.

        Returns True if the job ends as cancelled. Returns False if it had ended or was stopping, so that its
        outcome has another cause. Jobs that still run in a tree that stops are cancelled all the same.
        """
        return await self._life.running("cancel a job").tracker.cancel(
            job_id, reason, call_timeout=call_timeout
        )

    async def look(
        self,
        tree: str,
        *,
        listed: str = "members",
        first: int = 0,
        limit: int = CALL_ROWS,
        max_bytes: int = 0,
        deadline: float | None = None,
    ) -> TreePage:
        """Return a root and one page of its members.

        `listed` is `members` (in the order in which they were added) or `done` (in which they completed).
        The page begins at member number `first` (from 0) and has at most `limit` members. Without a
        `deadline` the call has 30 s, because consumers make it too.
        """
        trees = self._life.running("look at a tree").store.trees
        until = _deadline() if deadline is None else deadline
        return await trees.look(
            tree, listed=listed, first=first, limit=limit, max_bytes=max_bytes, deadline=until
        )

    async def outcomes(self, ids: Sequence[str], *, max_bytes: int | None = None) -> list[Outcome]:
        """Return the states of jobs with their results or errors, in the order of `ids`.

        A job without a record has the state `unknown`. At most `max_bytes` of results are read, but always
        the first; jobs beyond them have the state `later`.
        """
        store = self._life.running("look jobs up").store
        return await store.look("", ids, join=False, max_bytes=max_bytes, deadline=_deadline())

    async def checkpoint(
        self, job: Job, saved: Mapping[str, str] | None = None, *, acknowledges: bool = False
    ) -> bool:
        """Save texts by name under the job's lease. Return False if the lease is lost.

        With `acknowledges` the job says that it is a root and knows of the stop of its tree: the outcome that
        it settles next is final. If `cancel` has returned True for the tree, that outcome is recorded as
        cancelled.
        """
        status = await self._life.running("save a checkpoint").store.trees.checkpoint(
            job.id, job.token, saves=_saves(saved), acknowledges=acknowledges, deadline=_deadline()
        )
        return status == "ok"

    async def stop_failed(self, job: Job, error: str) -> bool:
        """Stop the tree of a running root with `on="wake"`, because it has failed; return False if the lease
        is lost.

        The root goes on until it settles, and is claimed again, to undo. `error` is JSON text. The first
        cause of a stop stays.
        """
        trees = self._life.running("stop a tree").store.trees
        return await trees.fail(job.id, job.token, error, deadline=_deadline()) != "lost"

    async def append(
        self,
        job: Job,
        entries: Sequence[str],
        *,
        live: Mapping[str, str] | None = None,
        taken: Sequence[str] = (),
    ) -> str:
        """Append entries to the journal of a job that runs here, under its lease; return when they are
        recorded.

        `live` are texts by name that replace those of before, and `taken` are ids of signals that the entries
        take over, so that no later run is given them. All of it is recorded together. Entries of several
        calls may be appended at a time, in the order of the calls.

        Returns `ok`; `stopping`: recorded, but the job's tree stops; `lost`: the lease is lost, nothing was
        recorded. Raises UsageError if the job does not run in this process, or for what cannot be recorded: a
        text that is none or over `max_result` (or `max_payload`) and 16 KiB, more than 2,000 entries, 100
        live texts or 1,000 signals, or more than 16 MiB (or `max_result`) in all. Raises StoreCorrupt if
        somebody else changed the journal, and ProviderStopped if the worker ends before the answer.
        """
        check_append(entries, live := live or {}, taken, most=self._most_text)
        worker = self._life.worker
        if worker is None:
            raise UsageError(f"job {job.id} does not run here, so this process cannot append to its journal")
        if job.unread or self._reading.used:
            async with self._reading.pass_through(f"{job.token} {job.id}", is_needed=bool(job.unread)):
                await self.read_journal(job)
                appended = worker.append(job, entries, live=live, taken=taken)
        else:
            appended = worker.append(job, entries, live=live, taken=taken)
        word = await appended
        if word == "torn":
            raise StoreCorrupt(
                f"the journal of job {job.id} has other entries than this worker has appended; nothing was "
                "recorded"
            )
        return word

    async def read_journal(self, job: Job) -> list[str]:
        """Return the whole journal of a claimed job; reads what its claim did not bring."""
        journals = self._life.running("read a journal").store.journals
        while job.unread > 0:
            first = len(job.journal)
            page = await journals.entries(job.id, first=first, limit=_JOURNAL_PAGE, deadline=_deadline())
            if first == len(job.journal):  # otherwise another call has read it meanwhile
                job.journal += page
                job.unread = job.unread - len(page) if page else 0
        return job.journal

    async def hear(self, job: Job) -> list[SentSignal]:
        """Look for signals that a running job was sent since its claim; `job.signals` and `job.heard` then
        have them.
        """
        journals = self._life.running("look for signals").store.journals
        job.heard, job.signals = await journals.inbox(job.id, deadline=_deadline())
        return job.signals

    async def listen(self, job: Job, *, within: float) -> None:
        """Wait until a running job is sent a signal that it does not know of (`job.heard`), at most `within`
        seconds.

        A signal ends the wait at once, and a lost message costs the whole time: so look for signals
        afterwards (`hear`). Signals of one job are waited for by one call at a time. Raises StoreError.
        """
        journals, worker = self._life.running("listen to signals").store.journals, self._life.worker
        run = None if worker is None else worker.running(job)
        if run is None:
            await asyncio.sleep(within)
        else:
            await listen(run, journals, within=within, deadline=_deadline())

    async def journal(
        self, job_id: str, *, first: int = 0, limit: int = 200, deadline: float | None = None
    ) -> list[str]:
        """Return a page of the journal of any job: at most `limit` entries from number `first` on, counted
        from 0.

        Raises StoreCorrupt where somebody else's value stands in its place.
        """
        if limit < 1:
            return []
        journals = self._life.running("read a journal").store.journals
        deadline = _deadline() if deadline is None else deadline
        try:
            return list(await journals.entries(job_id, first=first, limit=limit, deadline=deadline))
        except StoreRefused as error:
            if error.code != "WRONGTYPE":
                raise
            raise StoreCorrupt(f"the journal of job {job_id!r} is no journal: {error}") from error

    async def now(self, *, call_timeout: Duration | None = None) -> int:
        """Return the server's time, Unix time in ms. Raises StoreError, ProviderStopped."""
        roster = self._life.running("ask for the time").store.inspection.roster
        return await roster.now(deadline=self.settings.deadline(call_timeout))

    async def live(self, job_id: str, name: str) -> str | None:
        """Return a live text of any job, as it was appended last; None if there is none."""
        journals = self._life.running("read a live text").store.journals
        return await journals.live(job_id, name, deadline=_deadline())

    async def lives(
        self, job_id: str, names: Sequence[str] = (), *, deadline: float | None = None
    ) -> dict[str, str]:
        """Return live texts of any job by name, or all of them; none that is not there."""
        journals = self._life.running("read live texts").store.journals
        until = _deadline() if deadline is None else deadline
        return await journals.lives(job_id, names, deadline=until)

    async def inbox(self, job_id: str, *, deadline: float | None = None) -> list[SentSignal]:
        """Return the signals of any job that no entry of its journal has taken, in the order in which they
        came.
        """
        journals = self._life.running("read an inbox").store.journals
        return (await journals.inbox(job_id, deadline=_deadline() if deadline is None else deadline))[1]

    async def signal(
        self,
        job_id: str,
        name: str,
        payload: str = "null",
        *,
        signal: str = "",
        call_timeout: Duration | None = None,
    ) -> None:
        """Send a signal to a job, which keeps it until an entry of its journal takes it; a sleeping job wakes
        up.

        `name` has no spaces, and `payload` is any text, mostly JSON. `signal` is the id of the signal: who
        sends the same one again sends none, as long as no entry has taken it, and then as long as it is one
        of the last 100 that the job was sent, also when the job has ended. It has at most 256 bytes. By
        default it is fresh.

        Raises UnknownJob, UsageError for a name, an id or a payload that is none or over `max_payload` bytes,
        SignalRefused if the job cannot take it, and StoreError.
        """
        check_text(payload, "the payload of a signal", most=self.settings.max_payload)
        check_signal_id(signal, name)
        if not name or not name.isprintable() or " " in name:
            raise UsageError(
                f"{shown(name)} is no name of a signal: it is empty, or has spaces or control characters"
            )
        journals = self._life.running("send a signal").store.journals
        word = await journals.signal(
            job_id,
            signal=signal or f"~{chance.token(8)}",  # no caller chose it: see `restart.lua`
            name=name,
            payload=payload,
            deadline=self.settings.deadline(call_timeout),
        )
        if word == "unknown":
            raise UnknownJob(job_id)
        if word != "sent":
            raise SignalRefused(job_id, name, word)

    async def spawn(
        self,
        job: Job,
        members: Sequence[Member],
        *,
        tree: str,
        awaited: Sequence[str] = (),
        saved: Mapping[str, str] | None = None,
        delay_ms: int | None = None,
        heard: int | None = None,
        first: bool = False,
        waits: bool = True,
    ) -> str:
        """Add members to `tree`, save texts by name, and let the job wait for the `awaited` members.

        These may be new ones, or others of the tree. The job runs again when all of them have ended, or
        already when
        - `first` is set, and one of them has ended, be it before this call;
        - `delay_ms` have passed;
        - `heard` is given, and the job has been sent more signals than that, as with `suspend`.
        What it awaited runs on then, and its end changes nothing for the job, until the job awaits it again.
        With `waits=False` the job goes on under its lease while the members run.

        Returns `waiting`: the job has given up its lease; `added`: it goes on; `stopping`: the tree stops, or
        the job was cancelled, so nothing was added; `lost`: the job's lease is lost. Members that exist
        already are not added again, so the call may be repeated. Raises UsageError for a job that would go on
        and wait, or wait for itself.
        """
        trees = self._life.running("add children").store.trees
        is_mixed = delay_ms is not None or heard is not None or first
        if not waits and (awaited or is_mixed):
            raise UsageError("a job that goes on waits for nothing: give waits=False, or what it waits for")
        if job.id in awaited:
            raise UsageError(f"job {job.id} cannot wait for its own end")
        wait = Wait(
            int(is_mixed), "" if delay_ms is None else delay_ms, "" if heard is None else heard, int(first)
        )
        calls = spawn_calls(members, root=tree, parent=job.id, awaited=awaited, wait=wait)
        for index, call in enumerate(calls):
            # The last call saves and gives up the lease. A crash before it leaves a job that adds its members
            # again.
            is_last = index == len(calls) - 1
            status = await trees.checkpoint(
                job.id,
                job.token,
                **call._asdict(),
                saves=_saves(saved) if is_last else (),
                opens=is_last,
                waits=waits and is_last,
                deadline=_deadline(),
            )
            if status in ("stopping", "lost"):
                return status
        return "waiting" if waits else "added"

    async def restart(
        self,
        root: str,
        body: str,
        *,
        run: int,
        timeout: float | None = None,  # noqa: ASYNC109  (of the run, kept in the server)
        keeps: Collection[Literal["journal", "inbox", "live", "texts"]] = (),
        forgets: Collection[str] = (),
        deadline: float | None = None,
    ) -> str:
        """Run the root of an ended tree again with `body`, as the run after number `run`.

        The root keeps its id, key, priority and log of errors, and what `keeps` names: its journal, its live
        texts, the signals in its inbox with the ids of those that were taken. Of these the ids in `forgets`
        may be sent once more. Its stop, outcome, attempts and checkpoints are removed. Members keep their
        outcomes. `timeout` is in seconds from now; None: no limit. Returns `restarted`; `open`: not ended
        yet; `other`: another caller began that run; `member`; `unknown`.
        """
        trees = self._life.running("run a tree again").store.trees
        return await trees.restart(
            root,
            call=chance.token(8),
            run=run,
            body=body,
            timeout_ms="" if timeout is None else round(timeout * 1000),
            keeps=keeps,
            forgets=forgets,
            deadline=self._until(deadline),
        )

    async def root_queues(self, *, deadline: float | None = None) -> list[str]:
        """Return the queues that have or had roots of trees."""
        trees = self._life.running("list trees").store.trees
        return await trees.root_queues(deadline=self._until(deadline))

    async def roots(
        self, queue: str, state: str, *, first: int = 0, limit: int = 50, deadline: float | None = None
    ) -> list[str]:
        """Return the ids of roots of a queue, newest first: `open` ones, or those that ended in `state`.

        The page begins at root number `first` (from 0) and has at most `limit` roots.
        """
        trees = self._life.running("list trees").store.trees
        until = self._until(deadline)
        return await trees.roots(queue, state, first=first, limit=limit, deadline=until)

    async def root_page(
        self,
        queues: Sequence[str],
        kinds: Sequence[str],
        *,
        after: RootPlace | None = None,
        limit: int = 50,
        deadline: float,
    ) -> list[RootRow]:
        """Return at most `limit` roots of queues behind a place, newest first, those of all queues in one
        row.

        `kinds` are `open` (by when it was added), `completed`, `failed` and `cancelled` (by their ends), and
        `leaving`: ended ones that go at a time of their own, by that time. `deadline` is a time of the
        monotonic clock. A queue may be asked for as often as there are pages: none is read from its
        beginning. Raises ProviderStopped and StoreError.
        """
        trees = self._life.running("list trees").store.trees
        return await trees.root_page(queues, kinds, after=after, limit=limit, deadline=deadline)

    async def definition(self, queue: str, version: str, *, call_timeout: Duration | None = None) -> str:
        """Return what a version of the jobs of a queue is, as a worker of it told at its start: JSON; `''` if
        none did.

        The server keeps it for 90 days. Raises ProviderStopped and StoreError.
        """
        deadline = self.settings.deadline(call_timeout)
        store = self._life.running("look at a definition").store
        return await store.presence.definition(queue, version, deadline=deadline)

    async def paused(self, among: Callable[[str], bool]) -> frozenset[str]:
        """Return the paused queues whose names `among` accepts."""
        return await self._life.running("ask for pauses").store.controls.paused(among, deadline=_deadline())

    def _until(self, deadline: float | None) -> float:
        return self.settings.deadline() if deadline is None else deadline

    @staticmethod
    def digest(key: str) -> str:
        """Return the digest that a `Tree` holds in place of its idempotency key."""
        return key_digest(key)

    @staticmethod
    def payload_digest(payload: bytes) -> str:
        """Return the digest that a `Tree` holds as the `print` of its payload."""
        return payload_digest(payload)


def _saves(saved: Mapping[str, str] | None) -> list[SaveRow]:
    return [SaveRow(name, text) for name, text in (saved or {}).items()]


def _deadline() -> float:
    return clock.monotonic() + _PATIENCE
