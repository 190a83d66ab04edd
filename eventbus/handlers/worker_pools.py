"""The named pools of one worker: their places, and the threads or processes behind them.

    declared -> made at its first use -> closed with its worker

Not here: what may be declared (`handlers.pools`), and the threads of handlers without a pool
(`runtime.thread_pool`).

What must always hold: a function runs only while its attempt holds a place; a thread that runs on after its
attempt keeps a place until it ends; a waiting attempt holds no place, and its timeout does not count yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from eventbus.handlers.pools import PoolSpec
from eventbus.handlers.process.calls import ProcessCalls
from eventbus.runtime.places import Places
from eventbus.runtime.process_pool import ProcessPool, available_processors
from eventbus.runtime.thread_pool import ThreadPool


class WorkerPool:
    """One pool in one worker. Either `threads`, or `processes` with its `calls`, is not None."""

    def __init__(
        self, spec: PoolSpec, on_room: Callable[[], None], make_processes: Callable[[], ProcessPool]
    ) -> None:
        """`on_room` is called when one more job may come for a place. `make_processes` is called if it has
        processes.
        """
        self.name: str = spec.name
        self.size: int = spec.size
        self.places: Places = Places(spec.size, on_room)
        self.threads: ThreadPool | None = None
        self.processes: ProcessPool | None = None
        self.calls: ProcessCalls | None = None
        if spec.is_process:
            self.processes = make_processes()
            self.calls = ProcessCalls(self.processes)
        else:
            self.threads = ThreadPool(spec.size, self.places)


class WorkerPools(Mapping[str, WorkerPool]):
    """The pools of one worker by name, `"process"` among them. Each is made at its first use, and starts
    nothing then.
    """

    def __init__(
        self,
        specs: Mapping[str, PoolSpec],
        processes: ProcessPool,
        make_processes: Callable[[], ProcessPool],
        *,
        on_room: Callable[[], None],
    ) -> None:
        """`specs` are the declared pools, to which the provider may add some later. `processes` are those of
        the pool `"process"`; `make_processes` makes those of another one.
        """
        self._specs = specs
        self._on_room = on_room
        built_in = PoolSpec("process", available_processors(), is_process=True)
        self._make_processes = make_processes
        self._made: dict[str, WorkerPool] = {"process": WorkerPool(built_in, on_room, lambda: processes)}

    def __getitem__(self, name: str) -> WorkerPool:
        pool = self._made.get(name)
        if pool is None:
            pool = self._made[name] = WorkerPool(self._specs[name], self._on_room, self._make_processes)
        return pool

    def __iter__(self) -> Iterator[str]:
        return iter(["process", *self._specs])

    def __len__(self) -> int:
        return 1 + len(self._specs)

    def close_threads(self) -> None:
        """Refuse further calls of the threads of all pools. Idempotent."""
        for pool in self._made.values():
            if pool.threads is not None:
                pool.threads.close()

    async def aclose(self) -> None:
        """End the processes of all pools, and refuse further calls of their threads. Idempotent."""
        self.close_threads()
        async with asyncio.TaskGroup() as ends:
            for pool in self._made.values():
                if pool.processes is not None:
                    ends.create_task(pool.processes.aclose())
