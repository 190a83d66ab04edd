"""The progress of a flow's active steps: only what running attempts tell counts."""

from __future__ import annotations

import json

from workflows.execution.progress_notes import ProgressNotes


async def test_all_active_steps_are_recorded_together_and_none_that_has_ended() -> None:
    recorded: list[object] = []

    async def write(text: str) -> None:
        recorded.append(json.loads(text))

    notes = ProgressNotes(write)
    left, right = notes.begin("left"), notes.begin("right")
    await left.tell("1")
    await right.tell('{"part":2}')
    notes.end(left)
    await left.tell("5")
    await right.tell("3")
    assert recorded == [{"left": 1}, {"left": 1, "right": {"part": 2}}, {"right": 3}]
    assert (notes.read("left"), notes.read("right")) == (None, 3)


async def test_an_attempt_that_was_given_up_on_does_not_end_or_tell_for_the_next_one() -> None:
    notes = ProgressNotes()
    first = notes.begin("step")
    await first.tell("1")
    second = notes.begin("step")
    assert notes.read("step") is None
    await second.tell("2")
    await first.tell("9")
    notes.end(first)
    assert notes.read("step") == 2
    notes.end(second)
    assert notes.read("step") is None
