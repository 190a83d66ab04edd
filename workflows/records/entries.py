"""The entries of a flow's journal: what happened in the flow, in the order in which it was recorded.

    step     a step completed or was skipped; `result` is its result. With an `error` it failed, and the flow
             goes on; with `is_lost` that one may have taken effect
    failed   a step failed for good; `error` is the record of its error; with `is_lost` it may have taken
             effect
    try      an attempt of a step failed, and another one follows at `due_ms`
    cut      a step was cancelled while it ran, and returned nothing; with `is_lost` it may still run
    each     a step begins that runs for each item of the list `result`, at most `at_once` at a time; the
             `place` of an item is `step[number]`; with `keeps_failures` failed items do not stop the flow
    child    the flow or job `child` is added for the step, and its end becomes the step's; the entry of that
             end names it, too
    undo     a rollback ended; `place` is its path, `error` is empty if it succeeded
    hook     the hook `place` ran
    run      run number `run` begins; the entries up to the next one of these belong to it. `origin`, of
             a durable function, is the run from which random numbers and ids follow
    spread   the same, and the steps of this run are jobs of their own, so their records say what happened
    stop     an activation has heard that the flow is being stopped; `cut` entries before it say which steps
             are in doubt; `name` is the step that made the flow fail

A step of a graph that only waits has `sleep` or `wait` when it begins, and `step` or `failed` at its end.
`refused` is said in its `place`. The root of a flow whose steps are jobs has `wait`, `signal` and `refused`
of those that wait for signals.

A flow of a durable function has these besides; `place` is the position of a call:

    sleep    a sleep began, which ends at `due_ms`
    wait     a wait for the signal `name` began; with `due_ms` it ends then at the latest
    due      the time of a sleep or of a wait has come
    signal   a signal came to a wait; `result` is its payload
    refused  a signal came that does not fit its type; `error` says why
    race     a race was decided; `result` is the number of the winner, and `steps` are the positions of the
             calls in it. Behind that of a group are those of its own calls, with a `-` if the group stands
             without them
    patch    the code asked for the patch `name`, and got it
    rollback a rollback of no step is known from here on: of the task `undo`, with the arguments in `result`
    raised   the function raised; `place` names the call whose error that is. `steps` are the calls whose
             errors led to it, each with the first positions behind its error
    again    the function starts again with the input in `result`, and forgets all entries before

A flow of a state machine has these besides; `name` is the transition, `origin` the place where it began, and
`move` counts the moves. Its journal keeps the newest entries alone:

    move     the machine has come to `place`; `result` is what triggered it. With `is_lost` a transition
             failed, and this is the error place. Without a name somebody moved it by hand
    try      an attempt of a transition failed, and another one follows at `due_ms`
    failed   a transition failed for good
    retry    somebody had the transition run again that had failed
    refused  a trigger came that does not fit, or whose guard is false; `error` says why

What must always hold: an entry is never changed; a reader ignores keys and kinds that it does not know,
because releases may differ. Values inside an entry are JSON already (`Raw`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from eventbus import StoreCorrupt

_NOTHING = msgspec.Raw(b"null")
_NO_ERROR = msgspec.Raw()


class Entry(
    msgspec.Struct,
    omit_defaults=True,
    kw_only=True,
    gc=False,
    rename={
        "kind": "k",
        "place": "p",
        "name": "n",
        "result": "r",
        "error": "e",
        "skipped": "s",
        "is_lost": "l",
        "undo": "u",
        "child": "j",
        "run": "x",
        "attempts": "a",
        "started_ms": "t",
        "took_ms": "d",
        "due_ms": "w",
        "traceparent": "h",
        "version": "v",
        "steps": "o",
        "at_once": "m",
        "keeps_failures": "f",
        "origin": "g",
        "move": "c",
        "signal": "i",
    },
):
    """One entry. `place` is the name of a graph's step, or the position of a call in a durable function.

    `name` is the name of what was called there, and `undo` that of its rollback; in a graph `undo` says only
    that a rollback undoes the step. `child` is the id of a flow
    or job that it started. `attempts` counts the attempts that ended in an error. Times are Unix times in ms,
    `took_ms` is a duration. `version` and `steps`, in the first entry of a run, are the workflow's version
    and all steps of the graph. `signal` is the id of the signal that the entry takes, if its sender chose
    one.
    """

    kind: str
    place: str = ""
    name: str = ""
    result: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NO_ERROR
    skipped: bool = False
    is_lost: bool = False
    undo: str = ""
    child: str = ""
    run: int = 0
    attempts: int = 0
    started_ms: int = 0
    took_ms: int = 0
    due_ms: int = 0
    traceparent: str = ""
    version: str = ""
    steps: tuple[str, ...] = ()
    at_once: int = 0
    keeps_failures: bool = False
    origin: str = ""
    move: int = 0
    signal: str = ""

    @property
    def failure(self) -> str:
        """The record of the error as JSON text; empty if there is none."""
        return bytes(self.error).decode()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


def encode_entry(entry: Entry) -> str:
    """Return an entry as JSON text."""
    return _encode(entry).decode()


def encode_entries(entries: Iterable[Entry]) -> list[str]:
    """Return entries as JSON texts."""
    return [_encode(entry).decode() for entry in entries]


def chosen_id(signal_id: str) -> str:
    """Return the id of a signal, if its sender chose it; empty for one of the library, which nobody sends
    again.
    """
    return "" if signal_id.startswith("~") else signal_id


def read_entries(flow_id: str, journal: Iterable[str]) -> list[Entry]:
    """Return the entries of a journal. Raises StoreCorrupt for a text that is no entry."""
    try:
        return [_decode(text) for text in journal]
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the journal of flow {flow_id} cannot be read: {error}") from None


def entries_of_run(entries: Iterable[Entry], run: int) -> list[tuple[int, Entry]]:
    """Return the entries of the runs up to number `run`, each with the number of its run."""
    found: list[tuple[int, Entry]] = []
    number = 1
    for entry in entries:
        if entry.kind in ("run", "spread"):
            number = entry.run
        if number <= run:
            found.append((number, entry))
    return found
