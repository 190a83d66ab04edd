"""Sending triggers to state machines whose payloads are JSON text already (`sent_signals` checks them), and
what the server refuses.
"""

from __future__ import annotations

import msgspec

from eventbus import SignalRefused
from eventbus.lowlevel import Duration, JobClient
from workflows.machines.choosing import MOVE, RETRY, trigger_name
from workflows.machines.snapshot import ACCEPTS, NAMES, read_snapshot
from workflows.machines.transition import END
from workflows.machines.triggers import MoveTo
from workflows.records.ids import workflow_of

_REFUSALS = {"ended": "the flow has ended", "stopping": "the flow is being cancelled or rolled back"}


async def send_trigger_text(
    jobs: JobClient,
    flow_id: str,
    transition: str,
    payload: str,
    *,
    trigger_id: str = "",
    call_timeout: Duration | None = None,
) -> None:
    """Send a trigger whose payload is JSON text already. Raises SignalRefused, with what the machine accepts
    instead.
    """
    try:
        await jobs.signal(
            flow_id, trigger_name(transition), payload, signal=trigger_id, call_timeout=call_timeout
        )
    except SignalRefused as error:
        told = _REFUSALS.get(error.reason, "")
        if error.reason == "unwanted":
            told = await _tell_place(jobs, flow_id, transition)
        raise SignalRefused(flow_id, transition, error.reason, told, is_trigger=True) from None


async def send_retry(jobs: JobClient, flow_id: str, target: str | None) -> bool:
    """Have a machine that has not ended run again what failed, or move to `target`; return False if nothing
    failed there.

    Raises SignalRefused for one that has ended meanwhile, or that is being stopped; UnknownJob, StoreError.
    """
    try:
        if target is None:
            await jobs.signal(flow_id, RETRY)
        else:
            await jobs.signal(flow_id, MOVE, msgspec.json.encode(MoveTo(target)).decode())
    except SignalRefused as error:
        if error.reason == "unwanted":
            return False
        name = "retry" if target is None else f"to move to {target}"
        raise SignalRefused(
            flow_id, name, error.reason, _REFUSALS.get(error.reason, ""), is_trigger=True
        ) from None
    return True


async def _tell_place(jobs: JobClient, flow_id: str, transition: str) -> str:
    """Tell where the machine is, which may have moved since it refused."""
    live = await jobs.lives(flow_id, NAMES)
    snapshot = read_snapshot(flow_id, live)
    if snapshot is None:
        return f"no worker has begun it yet, or workflow {workflow_of(flow_id)!r} is no state machine"
    offered = [name.removeprefix("!") for name in live.get(ACCEPTS, "").split() if not name.startswith("!!")]
    place = "END" if snapshot.place == END else repr(snapshot.place)
    accepted = f"accepts {', '.join(offered)}" if offered else "accepts no trigger now"
    if transition in offered:
        return (
            "the machine accepted none at that moment, because it had not begun or just moved; it is at "
            f"place {place} now, which {accepted}: send it again"
        )
    return f"the machine is at place {place}, which {accepted}"
