"""State machines: flows that stand at a named place until a transition moves them to another one.

    started -> at a place -> a guard is true -> body runs on a copy -> moved (recorded)
                             -> at the next place -> ... -> completed
                          -> waits for a trigger, or for its children  -> the same
                          -> body fails -> attempt recorded -> tried again | moved to `error_place`
                                                                 | stands there with its error

What a machine is lies in its snapshot: live texts of the flow's root job, each replaced whole.
    machine     place, number of moves, what failed there last, the ids of the children that it awaits,
                its result
    state       the state, as JSON
    doc/<name>  a document
    children    the children that it awaits: which flow, with which input
    undo/<n>    move number n has a rollback, and what became of that
    accepts     the triggers that may be sent now; the server takes it away with the first trigger
                that it accepts
    doubts      transitions with a rollback whose body was given up on when it was cut: what they did is
                unknown
The journal has one entry for each move and each failed attempt. It is for people: no worker reads it. It
keeps the newest `HISTORY` entries.

What must always hold:
- a move is one append: its entry, the snapshot behind it, the children that it starts, the trigger that it
  takes. So entry and snapshot never disagree, and a body that failed has left its error and nothing else;
- a body works on a copy, made by encoding and decoding, and its context is closed when its attempt ends:
  what a body does later, that ignored its cancellation, reaches nothing;
- guards have no effects. Those of the next place are asked before the move is recorded, so that the move
  says what is accepted;
- a body that has taken effect is recorded, whatever comes before its move is: a cancel, the flow's timeout,
  its worker's stop, an error of that look. The move accepts nothing then, and the next activation looks. A
  body that returned although it was cut counts;
- `accepts` is empty while a body runs, so that a trigger is refused, or fires;
- children are recorded with the move and added behind it, with ids that follow from the number of the move;
- a failed transition does not fail the flow: it stands at its place and waits for `retry`, or for a trigger;
- rollback obligations are live texts, and no entry that goes takes one along.

Crash windows:
  `dies-in-transition`            nothing of the body is there; another worker runs it again
  `moved-not-answered`            the row is sent again, and known by its place
  `moved-then-dies-before-wait`   the next worker reads the place, and waits there
  `trigger-meets-move`            the move replaces `accepts` in its call: the trigger is refused, or taken
                                  by the new place
  `child-ends-before-move-is-saved`  cannot be: no child is added before its move is recorded.
                                  `recorded-not-added`: the next worker finds no job of that id, and adds it
  `timeout-fires-while-settling`  the move is recorded, or the lease is lost: the stop is claimed, and undoes
                                  what is recorded
  `error-place-not-saved`         the failure and the move to the error place are one append: the body runs
                                  again, or both are there
  `cut-while-guards-are-asked`, `cut-meets-move`, `body-outlives-cut`  the move is recorded, and undone if
  the flow was stopped
  `accepts-closed-then-dies`      nobody may send a trigger until the next worker has looked: it opens
                                  or moves

Alternatives: a durable function would replay a year of moves to know its place. A journal that is read back
needs no snapshot, but grows, or loses obligations when it is cut. A server function that knows places would
be one for machines alone. A failover that forgets moves takes their entries and their snapshot along, so the
worker gives the flow up, and the next one goes on from the last move that the server has.
"""
