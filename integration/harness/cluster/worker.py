"""One worker of a load: it takes turns, and sends some calls again."""

from __future__ import annotations

import json
import random
import threading
from itertools import chain
from typing import Any, NamedTuple

import redis
from checks.history import History
from harness.cluster.caller import ClusterCaller

from eventbus.store.scripting.script_rows import AnnounceQueue, LeaseRow, SettleRow, TurnQueue

__all__ = ["Worker"]

_LEASE_MS = 60_000
"""So long that none ends before the test."""
_FOR_EVER = 10**9
_WANT = 10
_CHORES = 8
"""Turns between two rounds of the calls that a worker makes beside its turns."""
_AGAIN = 0.1
"""The part of the turns that are sent again although they were answered, as if the answer had been lost."""
_POOL = "pool"


class _Answer(NamedTuple):
    """What a turn tells, and what it must tell again: the next due time, lost settles, and claims."""

    next_due: int
    lost: list[str]
    claims: list[Any]


class Worker:
    """Takes turns: each settles what the one before claimed. It gives back or retries some jobs, each
    once.
    """

    def __init__(
        self, name: str, caller: ClusterCaller, history: History, *, queues: tuple[str, ...]
    ) -> None:
        self.caller = caller
        self.held: list[LeaseRow] = []
        """The jobs that it claimed and did not settle."""
        self._name = name
        self._history = history
        self._queues = queues
        self._random = random.Random(name)
        self._number = 0

    def run(self, is_ending: threading.Event) -> None:
        """Take turns until the load ends and there is nothing left to do."""
        while True:
            is_last = is_ending.is_set()  # from before the turn, which then sees all that was added
            try:
                if self._number % _CHORES == 0:
                    self._do_chores()
                arguments, answer = self.turn()
                if self._random.random() < _AGAIN:
                    self.turn_again(arguments, answer)
                is_idle = not answer.claims and answer.next_due < 0
            except redis.ResponseError as error:
                self._history.complain(f"worker: {error}")
                is_idle = True  # otherwise a load that is broken would not end
            if is_idle and is_last:
                return
            if is_idle:
                self.caller.pause()

    def turn(self) -> tuple[list[Any], _Answer]:
        """Settle what is held and claim more. Return the arguments and the answer, to make the call again."""
        self._number += 1
        settles = [self._settle(lease) for lease in self.held]
        for each in settles:
            self._history.note("settling", each.id, token=each.token, state=each.state)
        kept = (_FOR_EVER, _FOR_EVER, _FOR_EVER, _FOR_EVER)
        queues = [TurnQueue(queue, _WANT, *kept, 600_000) for queue in self._queues]
        head = [
            "",
            self._name,
            self._number,
            _LEASE_MS,
            _POOL,
            0,
            _WANT,
            1,
            0,
            0,
            1 << 20,
            len(queues),
            0,
            len(settles),
        ]
        arguments = [*head, *chain.from_iterable(queues), *chain.from_iterable(settles)]
        answer = self._call(arguments)
        port = self.caller.answered_by
        for each in settles:
            what = "lost" if each.id in answer.lost else "settled"
            self._history.note(what, each.id, token=each.token, state=each.state, port=port)
        token = f"{self._name}:{self._number}"
        self.held = [LeaseRow(job, token) for job in answer.claims[::8]]
        for i in range(0, len(answer.claims), 8):
            self._note_claim(answer.claims[i : i + 8], token)
        return arguments, answer

    def turn_again(self, arguments: list[Any], answer: _Answer) -> None:
        """Make the last call again, which must change nothing and be answered as before."""
        again = self._call(arguments)
        if again[1:] != answer[1:]:
            self._history.complain(f"turn: answered {answer}, and to the same call {again}")

    def _call(self, arguments: list[Any]) -> _Answer:
        answer = self.caller.call("turn", arguments)
        return _Answer(answer[1], answer[2], answer[5])

    def _note_claim(self, row: list[Any], token: str) -> None:
        job, queue, body, _, stalls, _, _, stop = row
        self._history.note("claimed", job, token=token, port=self.caller.answered_by)
        if self._history.given.get(job) != (self._queues[queue - 1], body) or (stalls, stop) != (0, ""):
            self._history.complain(f"turn: {self._history.given.get(job)} was claimed as {row}")

    def _settle(self, lease: LeaseRow) -> SettleRow:
        state, attempts, text, delay = "completed", "", json.dumps("." * self._random.choice((5, 300))), 0
        fate = self._random.random()
        if fate < 0.2 and lease.id not in self._history.put_back:
            self._history.put_back.add(lease.id)
            state, text = "waiting", ""
            if fate < 0.1:
                state, attempts, text, delay = "delayed", 1, '{"type": "ValueError"}', 5
        return SettleRow(lease.id, lease.token, state, attempts, text, delay)

    def _do_chores(self) -> None:
        """Announce the worker, renew its leases, and look for leases to rescue; there is none."""
        rows = [AnnounceQueue(queue, queue, "") for queue in self._queues]
        head = ["", _POOL, self._name, "", 0, 0, [], len(rows), 0]
        self.caller.call("announce", [*head, *chain.from_iterable(rows)])
        head = ["", self._name, 0, _LEASE_MS, self._number, 0, len(self.held)]
        renewed = self.caller.call("renew", [*head, *chain.from_iterable(self.held)])
        if renewed != [[], [], []]:
            self._history.complain(f"renew: {renewed} of {self.held}")
        rescued = self.caller.call("rescue", ["", _LEASE_MS, 100, 3, 600_000])
        if len(rescued) > 1:
            self._history.complain(f"rescue: {rescued}")
