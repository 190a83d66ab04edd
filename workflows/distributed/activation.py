"""One activation of a flow: what its root job did before, and the calls that record what it does now.

    claimed -> journal read -> code runs, recording -> completed | suspended | given back | stopped

Each kind of flow records with an Activation only. It knows neither keys nor rows of the server.

What must always hold: an entry counts only after `append` has returned; what follows from it begins after
that. A flow ends its activation when `append` raises.

Crash windows: `dies-before-append` (it happened and is not recorded: it happens again), `append-not-answered`
(the journal knows a repeat by its place), `stop-while-running` (recorded; the flow is claimed again with its
stop), `lease-lost` (nothing is recorded; another worker has the flow).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eventbus import StoreCorrupt
from eventbus.lowlevel import Job, JobClient, Settle, Signal, suspend
from workflows.execution.surroundings import FlowClock, FlowStops, LeaseLost
from workflows.records.entries import Entry, encode_entries, read_entries

_PAGE = 500
_MOST = 1000  # entries of one append


class Activation:
    """One activation of the root job of a flow."""

    def __init__(self, jobs: JobClient, job: Job) -> None:
        self.jobs = jobs
        self.job = job
        self.entries: list[Entry] = []
        """The entries that were recorded before this activation; `append` does not add to them."""
        self.clock: FlowClock = FlowClock(job.claimed_ms)
        """The server's clock, as far as this process knows it without asking."""
        self._knows_stop = bool(job.stop)

    async def load(self) -> None:
        """Read the whole journal. Raises StoreCorrupt if it cannot be read, StoreError."""
        journal = await self.jobs.read_journal(self.job) if self.job.unread else self.job.journal
        self.entries = read_entries(self.job.id, journal)

    @property
    def signals(self) -> Sequence[Signal]:
        """The signals in the inbox of the flow when this activation began, the oldest first."""
        return self.job.signals

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Record entries, live texts and the signals that they take, all or nothing up to 1,000 entries.

        Raises FlowStops (recorded, but the flow stops, and this activation has not heard of it), LeaseLost
        (what follows the entries of before is not recorded), UsageError for what cannot be recorded,
        ProviderStopped, StoreCorrupt.
        """
        texts = encode_entries(entries)
        while len(texts) > _MOST:  # of a graph with thousands of parallel steps
            self._check_lease(await self.jobs.append(self.job, texts[:_MOST]))
            del texts[:_MOST]
        word = await self.jobs.append(self.job, texts, live=live, taken=taken)
        self._check_lease(word)
        if word == "stopping" and not self._knows_stop:
            raise FlowStops

    def _check_lease(self, word: str) -> None:
        if word not in ("ok", "stopping"):
            raise LeaseLost

    async def stop_failed(self, error: str) -> None:
        """Stop the flow because of a failure, while other steps still run; the next activation rolls it back.

        `error` is the record of the failure. Raises LeaseLost, StoreError.
        """
        self._knows_stop = True
        if not await self.jobs.stop_failed(self.job, error):
            raise LeaseLost

    def sleep(self, *, until_ms: int | None = None, listens: bool = False) -> Settle:
        """Return the settle that lets the flow sleep until a time, or with `listens` until it is sent a
        signal.

        With `listens` this activation must have looked at all `signals`.
        """
        delay = None if until_ms is None else max(0, until_ms - self.clock.now_ms)
        return suspend(delay_ms=delay, heard=self.job.heard if listens else None)


async def read_journal(
    jobs: JobClient, flow_id: str, root: Mapping[str, str], *, deadline: float | None = None
) -> list[Entry]:
    """Return the entries of any flow whose root has these fields. Raises StoreCorrupt, StoreError."""
    found: list[str] = []
    while root.get("journal"):
        page = await jobs.journal(flow_id, first=len(found), limit=_PAGE, deadline=deadline)
        found += page
        if len(page) < _PAGE:
            break
    if root.get("journal") and not found:
        raise StoreCorrupt(f"the journal of flow {flow_id} is gone")
    return read_entries(flow_id, found)
