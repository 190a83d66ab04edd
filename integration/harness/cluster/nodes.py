"""A cluster of two nodes, and the ways in which a slot moves from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import redis
from harness.backends import Backend, free_ports
from harness.conditions import wait_until

__all__ = ["Cluster"]

_HOST = "127.0.0.1"
_NODE_TIMEOUT = 10_000
"""Milliseconds. Starting takes no longer for it, and a node that a busy machine holds up counts as dead
later.
"""
_MIGRATE_TIMEOUT = 20_000
"""Milliseconds."""
_COPY_DELAY = 500
"""Microseconds that an atomic migration waits before each key, so that calls fall into it."""


class Cluster:
    """Two nodes. At first the `source` has every slot; one slot moves to the `target`."""

    def __init__(self, make_server: Callable[..., Backend], slot_of: str) -> None:
        """Start the nodes, and return when they serve every slot. `slot_of` is a key of the slot that
        moves.
        """
        ports = free_ports(4)
        self.source, self.target = (
            make_server(
                *("--cluster-enabled", "yes", "--cluster-port", str(bus)),
                *("--cluster-node-timeout", str(_NODE_TIMEOUT)),
                port=port,
            )
            for port, bus in (ports[:2], ports[2:])
        )
        self._clients = {
            node: node.client(socket_timeout=60, protocol=2) for node in (self.source, self.target)
        }
        self._ids = {node: self._ask(node, "CLUSTER", "MYID") for node in self._clients}
        self._slot: int = self._ask(self.source, "CLUSTER", "KEYSLOT", slot_of)
        for epoch, node in enumerate(self._clients, start=1):
            self._ask(node, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
        self._ask(self.source, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        self._ask(self.source, "CLUSTER", "MEET", _HOST, self.target.port, ports[3])
        wait_until("both nodes serve the cluster", lambda: all(map(self._is_ready, self._clients)))

    @property
    def nodes(self) -> tuple[Backend, Backend]:
        return self.source, self.target

    def begin_move(self) -> None:
        """Say to both nodes that the slot moves, key by key. Each call to it is refused unless all its keys
        are there.
        """
        self._ask(self.target, "CLUSTER", "SETSLOT", self._slot, "IMPORTING", self._ids[self.source])
        self._ask(self.source, "CLUSTER", "SETSLOT", self._slot, "MIGRATING", self._ids[self.target])

    def left(self, most: int) -> list[str]:
        """Return at most so many keys of the slot that the source still has."""
        return self._ask(self.source, "CLUSTER", "GETKEYSINSLOT", self._slot, most)

    def move(self, names: Sequence[str], *, replace: bool = False) -> None:
        """Move these keys. Raises ResponseError if the target has one of them, unless `replace`."""
        how = ("REPLACE",) if replace else ()
        where = (_HOST, self.target.port, "", 0, _MIGRATE_TIMEOUT)
        self._ask(self.source, "MIGRATE", *where, *how, "KEYS", *names)

    def end_move(self) -> None:
        """Say to both nodes that the target has the slot."""
        for node in (self.target, self.source):
            self._ask(node, "CLUSTER", "SETSLOT", self._slot, "NODE", self._ids[self.target])

    def begin_copy(self) -> None:
        """Begin to move the slot by an atomic migration, which Valkey 9 has; return while its keys are
        copied.
        """
        self._ask(self.source, "CONFIG", "SET", "rdb-key-save-delay", _COPY_DELAY)
        where = ("SLOTSRANGE", self._slot, self._slot, "NODE", self._ids[self.target])
        self._ask(self.source, "CLUSTER", "MIGRATESLOTS", *where)
        wait_until("keys are copied", lambda: self._migration()["state"] == "snapshotting", story=self._story)

    def wait_copied(self) -> None:
        """Wait until the target has the slot, and the source has none of its keys."""
        wait_until("the slot has moved", lambda: self._migration()["state"] == "success", story=self._story)
        wait_until("the source has no key", lambda: not self.left(1))

    def close(self) -> None:
        """Close the connections of this object, and those that the source keeps for the next MIGRATE."""
        for each in self._ask(self.target, "CLIENT", "LIST").splitlines():
            facts = dict(word.partition("=")[::2] for word in each.split())
            if facts["cmd"] == "restore-asking":
                with suppress(redis.ResponseError):  # it has just been closed
                    self._ask(self.target, "CLIENT", "KILL", "ID", facts["id"])
        for client in self._clients.values():
            client.close()

    def _ask(self, node: Backend, *words: Any) -> Any:
        return self._clients[node].execute_command(*words)

    def _is_ready(self, node: Backend) -> bool:
        nodes = self._ask(node, "CLUSTER", "NODES")
        is_met = all(name in nodes for name in self._ids.values()) and "handshake" not in nodes
        return is_met and "cluster_state:ok" in self._ask(node, "CLUSTER", "INFO")

    def _migration(self) -> dict[str, Any]:
        """The facts of the one atomic migration, as the source knows them."""
        (row,) = self._ask(self.source, "CLUSTER", "GETSLOTMIGRATIONS")
        facts = dict(zip(row[::2], row[1::2], strict=True))
        assert facts["state"] not in ("failed", "canceled"), facts
        return facts

    def _story(self) -> str:
        return str(self._migration())
