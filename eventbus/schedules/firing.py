"""What is to become of a schedule that is due: which slot fires, which pass, and which one is next.

What must always hold: the answer follows from the plan, the slot and the server's time. A worker's own clock
says nothing.
"""

from __future__ import annotations

from eventbus.schedules.plan import Plan, slot_digest
from eventbus.schedules.timetable import COUNTED
from eventbus.store.keys import payload_digest
from eventbus.store.scripting.script_rows import DueRow, FireRow

LATE = 60_000
"""ms. With `catch_up="skip"` a slot that is later than this was missed."""


def make_row(due: DueRow, plan: Plan, now: int) -> FireRow:
    """Return the row that fires a schedule, at the server's time `now`, ms."""
    table, first = plan.table, int(due.slot)
    in_turn, is_storm = plan.catch_up == "all", False
    if in_turn:
        is_storm = table.latest(first, now)[1] >= COUNTED
        slot, missed = _drop(plan, first, now, is_storm=is_storm)
    else:
        slot, missed = table.latest(first, now - table.jitter)
    window = LATE if plan.catch_up == "skip" and not due.held else plan.window
    fire = "" if is_storm or now - table.due(slot, due.id) > window else slot
    following = table.next_after(slot)
    is_behind = following is not None and table.due(following, due.id) <= now
    late = in_turn and (is_behind or due.held == str(slot))
    job = plan.job(due.id, due.gen, slot)
    body = plan.body(due.id, slot, job) if fire != "" else ""
    return FireRow(
        id=due.id,
        gen=due.gen,
        slot=due.slot,
        fire=fire,
        next="" if following is None else following,
        due="" if following is None else table.due(following, due.id),
        wait=0,
        missed=missed,
        queue=plan.queue,
        has_default=int(plan.has_default),
        job=job,
        body=body,
        key=slot_digest(due.id, slot),
        print=payload_digest(bytes(plan.payload)),
        overlap=plan.overlap,
        late=int(late),
        pauses=int(plan.on_failure == "pause"),
        root=int(plan.root is not None),
        timeout=plan.root.timeout if plan.root else 0,
        limit=plan.limit_key,
    )


def put_off(due: DueRow, wait: int) -> FireRow:
    """Return the row that puts a schedule off, because nobody here can fire it."""
    return FireRow(due.id, due.gen, due.slot, "", "", "", wait, 0, "", 0, "", "", "", "", "skip", 0, 0)


def _drop(plan: Plan, first: int, now: int, *, is_storm: bool) -> tuple[int, int]:
    """Return the first slot that is young enough to be caught up, and how many were passed over.

    In a storm, with more slots to catch up than `COUNTED`, the oldest of them are passed over, a part in each
    call.
    """
    slot, missed = first, 0
    while missed < COUNTED // 2 and (is_storm or now - slot > plan.window):
        following = plan.table.next_after(slot)
        if following is None or following > now:
            break
        slot, missed = following, missed + 1
    return slot, missed
