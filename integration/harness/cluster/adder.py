"""One adder of a load: it adds jobs, and sends some calls again."""

from __future__ import annotations

import random
import threading
from itertools import chain
from typing import Any

import redis
from checks.history import History
from harness.cluster.caller import ClusterCaller

from eventbus.store.keys import payload_digest
from eventbus.store.scripting.script_rows import JOIN, AddQueue, AddRow, PlainRow

__all__ = ["Adder"]

_AGAIN = 0.1
"""The part of the calls that are sent again although they were answered, as if the answer had been lost."""


class Adder:
    """Adds jobs: plain and delayed ones, and some with a key; an emission with a key of before joins
    its job.
    """

    def __init__(
        self, name: str, caller: ClusterCaller, history: History, *, queues: tuple[str, ...], emitter: str
    ) -> None:
        self.caller = caller
        self._name = name
        self._history = history
        self._queues = queues
        self._emitter = emitter
        self._random = random.Random(name)
        self._count = 0
        self._keyed: list[AddRow] = []

    def run(self, is_ending: threading.Event) -> None:
        """Add jobs until the load ends."""
        while not is_ending.is_set():
            try:
                self._add_some()
            except redis.ResponseError as error:
                self._history.complain(f"add: {error}")

    def add_plain(self, count: int = 1) -> list[Any]:
        """Add plain jobs. Return the arguments of the call, so that it can be made again."""
        rows = [self._plain() for _ in range(count)]
        arguments = self._arguments(rows, [])
        self._call(arguments, rows, {})
        return arguments

    def call_again(self, arguments: list[Any]) -> None:
        """Make an answered call of plain jobs again, which must change nothing."""
        self._call(arguments, [], {})

    def _add_some(self) -> None:
        size = self._random.randint(1, 4)
        if self._random.random() < 0.6:
            arguments = self.add_plain(size)
            if self._random.random() < _AGAIN:
                self.call_again(arguments)
            return
        rows = [self._full() for _ in range(size)]
        joins: dict[int, str] = {}
        if self._keyed:
            earlier = self._random.choice(self._keyed)
            joins[size] = earlier.id
            join = self._fresh_id()
            self._history.given[join] = self._history.given[earlier.id]
            arguments = self._arguments([], [*rows, earlier._replace(id=join)])
        else:
            arguments = self._arguments([], rows)
        self._call(arguments, rows, joins)
        if self._random.random() < _AGAIN:
            self._call(arguments, [], joins)
        self._keyed += [row for row in rows if row.key]

    def _call(
        self, arguments: list[Any], fresh: list[PlainRow] | list[AddRow], joins: dict[int, str]
    ) -> None:
        """Add, and note the jobs that are new. `joins` is the place of a row -> the job that it has
        to join.
        """
        answer = self.caller.call("add", arguments)
        verdicts = [tuple(answer[i : i + 3]) for i in range(1 + len(self._queues), len(answer), 5)]
        if verdicts != [(place, "joined", job) for place, job in joins.items()]:
            self._history.complain(f"add: expected {joins}, got {verdicts}")
        for row in fresh:
            self._history.note("acknowledged", row.id, port=self.caller.answered_by)

    def _arguments(self, plain: list[PlainRow], full: list[AddRow]) -> list[Any]:
        queues = [AddQueue(queue, 1, "") for queue in self._queues]
        head = ["", self._emitter, f"{self._emitter}:1", len(queues), 0, len(plain), len(full)]
        return [*head, *chain.from_iterable(queues), *chain.from_iterable(plain), *chain.from_iterable(full)]

    def _plain(self) -> PlainRow:
        job, queue, body = self._make()
        return PlainRow(job, queue, body, 1)

    def _full(self) -> AddRow:
        job, queue, body = self._make()
        is_keyed = self._random.random() < 0.5
        key, digest = (f"key-{job}", payload_digest(body.encode())) if is_keyed else ("", "")
        delay = "" if self._random.random() < 0.5 else self._random.randint(1, 20)
        return AddRow(job, queue, body, key, digest, delay, "", 0, 0, 1, JOIN)

    def _make(self) -> tuple[str, int, str]:
        """Return a fresh id, the place of a queue, and a body, which a record does not hold if it is long."""
        job, place = self._fresh_id(), self._random.randint(1, len(self._queues))
        body = job + "." * (300 if self._random.random() < 0.3 else 0)
        self._history.given[job] = (self._queues[place - 1], body)
        return job, place, body

    def _fresh_id(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"
