"""The children of one activation: when they are added, and when it asks after their ends."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from eventbus.lowlevel import Member, Outcome
from workflows.distributed.child_jobs import ChildJobs
from workflows.execution.surroundings import FlowStops


class _Server:
    """Adds children, and notes after which it was asked too early."""

    def __init__(self, word: str = "") -> None:
        self.added: list[str] = []
        self.asked_early: list[str] = []
        self.is_added = asyncio.Event()
        self.is_asked_to_add = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self._word = word

    def open(self) -> ChildJobs:
        runtime = SimpleNamespace(jobs=self, ask=self._ask)
        activation = SimpleNamespace(job=SimpleNamespace(id="flow~1"))
        return ChildJobs(runtime, activation)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    async def spawn(self, _job: Any, members: Sequence[Member], **_: Any) -> str:
        self.is_asked_to_add.set()
        await self.answers.wait()
        self.added += [member.id for member in members]
        self.is_added.set()
        return self._word

    async def outcomes(self, ids: Sequence[str]) -> list[Outcome]:
        self.asked_early += set(ids) - set(self.added)
        return [Outcome(each, "active" if each in self.added else "unknown", "") for each in ids]

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        return await answer


def _member(name: str) -> Member:
    return Member(name, "steps")


async def test_nobody_asks_after_a_child_that_came_as_the_time_of_the_question_was_up() -> None:
    server = _Server()
    children = server.open()
    children.add_member(_member("first"))
    await server.is_added.wait()
    await asyncio.sleep(0.001)  # it waits for the time of its next question
    later: list[asyncio.Future[Outcome]] = []
    asyncio.get_running_loop().call_later(0.4, lambda: later.append(children.add_member(_member("later"))))
    time.sleep(0.45)  # noqa: ASYNC251  (both are due in one round of the event loop: question, then child)
    server.is_added.clear()
    await server.is_added.wait()
    await children.close()
    assert (server.added, server.asked_early) == (["first", "later"], [])
    assert not later[0].done(), "nobody was told that it never was there"


async def test_an_end_that_nobody_awaits_is_no_error_in_the_log() -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    server = _Server("stopping")
    children = server.open()
    server.answers.clear()
    end = children.add_member(_member("first"))
    await server.is_asked_to_add.wait()
    closing = asyncio.ensure_future(children.close())
    await asyncio.sleep(0)
    closing.cancel()  # its worker stops the activation while the server has not answered
    await asyncio.wait({closing})
    server.answers.set()
    await asyncio.wait({end})
    late = children.end_of("late")
    assert late.done(), "it is refused as the first one was"
    await asyncio.sleep(0)
    del closing, end, late, children
    gc.collect()
    assert told == []


async def test_an_end_that_somebody_awaits_raises_why_it_was_not_added() -> None:
    children = _Server("stopping").open()
    with pytest.raises(FlowStops):
        await children.add_member(_member("first"))
    await children.close()
