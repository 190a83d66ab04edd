"""Pools: the names of where plain functions run, and what a provider declares about its own pools.

Not here: the places, threads and processes of a pool in a worker (`handlers.worker_pools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.names import check_pool_name, shown

BUILT_IN = ("thread", "process")
"""The pools that every worker has."""


class PoolSpec(msgspec.Struct, frozen=True):
    """A named pool: how many places it has in each worker, and whether these are processes or threads."""

    name: str
    size: int
    is_process: bool


def make_pool(name: Any, *, processes: Any, threads: Any, known: Iterable[str]) -> PoolSpec:
    """Check the declaration of a pool. Raises DefinitionError for one that cannot be used, or whose name is
    taken.
    """
    check_pool_name(name)
    if name in BUILT_IN:
        raise DefinitionError(f"every worker has a pool {name!r} already; give this one another name")
    if name in known:
        raise DefinitionError(f"pool {name!r} is declared already; declare it once, or rename one of the two")
    if (processes is None) == (threads is None):
        raise DefinitionError(
            f"expected either processes=... or threads=... for pool {name!r}, "
            f"got: processes={shown(processes)}, threads={shown(threads)}"
        )
    size, option = (threads, "threads") if processes is None else (processes, "processes")
    if type(size) is not int or size < 1:
        raise DefinitionError(
            f"expected {option} of pool {name!r} to be a positive integer, got: {shown(size)}"
        )
    return PoolSpec(name, size, processes is not None)


def check_pool(pool: Any, where: str, *, is_async: bool, pools: Mapping[str, PoolSpec]) -> bool:
    """Return whether functions with this option run in processes. Raises DefinitionError, naming `where`."""
    if pool is None:
        return False
    if not isinstance(pool, str) or (pool not in BUILT_IN and pool not in pools):
        known = ", ".join(f'"{name}"' for name in (*BUILT_IN, *pools))
        raise DefinitionError(
            f"expected pool of {where} to be one of {known}, got: {shown(pool)}; "
            "declare a pool of your own before, with provider.pool(name, processes=...) or threads=..."
        )
    if is_async:
        raise DefinitionError(
            f"{where} is async and runs in the event loop; for pool={pool!r} make it a plain function"
        )
    return pool == "process" or (pool in pools and pools[pool].is_process)
