"""A state machine that lives long: an account with deposits. Each body writes its key into a journal outside
of the server.

Run by `eventbus worker apps.handlers.account_app:provider` in `integration/`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec
from harness.journal import Journal

from eventbus import EventProvider
from workflows import END, MachineContext, StateMachine, WorkflowProvider, transition

__all__ = ["Account", "Book", "flows", "provider"]

provider: EventProvider = EventProvider()
flows: WorkflowProvider = WorkflowProvider(provider)


class Book(msgspec.Struct):
    """What an account has booked: its deposits, and how many of them were charged."""

    deposits: list[int] = msgspec.field(default_factory=list[int])
    charged: int = 0


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


def _note(what: str, ctx: MachineContext[Book]) -> None:
    _journal().write(what, ctx.flow_id, ctx.attempt, ctx.key)


class Account(StateMachine[Book], name="account", start="open"):
    @transition("open", to="charging", wait=int)
    async def deposit(self, ctx: MachineContext[Book], amount: int) -> None:
        _note("did", ctx)
        ctx.state.deposits.append(amount)

    @deposit.rollback
    async def refund(self, ctx: MachineContext[Book]) -> None:
        _note("undid", ctx)

    @transition("charging", to="open")
    async def charge(self, ctx: MachineContext[Book]) -> None:
        _note("did", ctx)
        ctx.state.charged += 1

    @transition("open", to=END, wait=None)
    async def close(self, ctx: MachineContext[Book], payload: None) -> Book:
        _note("did", ctx)
        return ctx.state


flows.register(Account)
