"""The server that a provider uses: what it is, what it holds, and what keeps it from working.

What must always hold: a report names no address and no URL, so that it may be shown to whoever may see
queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from eventbus.admin.namespace import Namespace, OldName
from eventbus.store.readable import number_in

if TYPE_CHECKING:
    from eventbus.store.diagnostics import Finding


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The server as it describes itself. Sizes are in bytes; `memory_limit` is 0 without one.

    `persistence` says what of its data outlives a crash. `keys` are those of this library by their kind among
    the first 10,000 of the server, which `keys_are_all` or not.
    """

    product: str
    version: str
    role: str
    replicas: int
    uptime_seconds: int
    memory: int
    memory_peak: int
    memory_limit: int
    policy: str
    persistence: str
    clients: int
    clients_blocked: int
    commands_per_second: int
    keys_evicted: int
    keys: dict[str, int]
    keys_are_all: bool


class Server(Namespace):
    """The server itself: its `report`, and a `check` of it."""

    async def report(self) -> ServerReport:
        """Return what the server says of itself. Raises ProviderStopped and StoreError."""
        store, deadline = self._begin("look at the server")
        facts = await store.inspection.server.facts(deadline=deadline)
        keys, are_all = await store.inspection.server.kinds(deadline=deadline)
        return _report(facts, keys, are_all=are_all)

    async def check(self, queues: list[str] | None = None) -> list[Finding]:
        """Return what `eventbus check` finds at the server, without its address; `queues` must be served by
        somebody.

        It takes up to half a minute where there are many keys. Raises ProviderStopped.
        """
        store = self._store("check the server")
        from eventbus.store.diagnostics import Checkup  # noqa: PLC0415  (commands start sooner)

        checkup = Checkup(
            store.connector,
            prefix=self._settings.prefix,
            name=f"{self._settings.name}-check",
            names_addresses=False,
        )
        return await checkup.run(
            queues or [],
            allow_eviction=self._settings.allow_eviction,
            replicated=self._settings.durability == "replicated",
        )

    __call__: Final = OldName(report)


def _report(facts: dict[str, str], keys: dict[str, int], *, are_all: bool) -> ServerReport:
    valkey = facts.get("valkey_version", "")
    return ServerReport(
        product="Valkey" if valkey else "Redis",
        version=valkey or facts.get("redis_version", ""),
        role="replica" if facts.get("role") == "slave" else "primary",
        replicas=number_in(facts, "connected_slaves"),
        uptime_seconds=number_in(facts, "uptime_in_seconds"),
        memory=number_in(facts, "used_memory"),
        memory_peak=number_in(facts, "used_memory_peak"),
        memory_limit=number_in(facts, "maxmemory"),
        policy=facts.get("maxmemory_policy", ""),
        persistence=_persistence(facts),
        clients=number_in(facts, "connected_clients"),
        clients_blocked=number_in(facts, "blocked_clients"),
        commands_per_second=number_in(facts, "instantaneous_ops_per_sec"),
        keys_evicted=number_in(facts, "evicted_keys"),
        keys=keys,
        keys_are_all=are_all,
    )


def _persistence(facts: dict[str, str]) -> str:
    kinds = ["append-only file"] if facts.get("aof_enabled") == "1" else []
    kinds += ["snapshots"] if facts.get("rdb_last_save_time", "0") not in ("", "0") else []
    return ", ".join(kinds) or "none"
