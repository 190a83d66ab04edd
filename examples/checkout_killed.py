"""Three workers run the orders of checkout.py. The first one that charges a customer is killed with -9."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from checkout import Order, buy, provider, say

WORKER = (sys.executable, "-m", "eventbus", "worker", "checkout:provider")
SETTINGS = {
    **os.environ,
    "PYTHONPATH": str(Path(__file__).resolve().parent),
    "EVENTBUS_LEASE": "2s",  # 10 s by default: how long the jobs of a dead worker wait
}


class Fleet:
    """Three workers, each an `eventbus worker checkout:provider`."""

    def __init__(self) -> None:
        self.workers: list[Process] = []
        self.killed: Process | None = None

    async def start(self) -> None:
        for _ in range(3):
            self.workers.append(await asyncio.create_subprocess_exec(*WORKER, env=SETTINGS, stdout=PIPE))

    async def watch(self, number: int, worker: Process) -> None:
        """Print what a worker prints; kill it if it is the first in the payment step."""
        assert worker.stdout is not None
        async for line in worker.stdout:
            say(f"worker {number}  {line.decode().rstrip()}")
            if b"charging" in line and self.killed is None:
                self.killed = worker
                worker.kill()
                say(f"worker {number}  killed with -9")

    def stop(self) -> None:
        for worker in self.workers:
            if worker.returncode is None:
                worker.terminate()


async def main() -> None:
    fleet = Fleet()
    await fleet.start()
    watching = asyncio.gather(
        *(fleet.watch(number, worker) for number, worker in enumerate(fleet.workers, start=1))
    )
    try:
        async with provider:  # it executes the flows; their steps run in the workers
            await buy(Order("o-1", 990, "Portugal", "ada@example.org"))
            await buy(Order("o-2", 450, "Atlantis"))
    finally:
        fleet.stop()
        await watching


if __name__ == "__main__":
    asyncio.run(main())
