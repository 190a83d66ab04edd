"""Runs each seed in a fork of this process, which is warm: its modules are imported, its server runs.

What must always hold: nothing of one seed reaches the next. The fork ends without a clean-up, the server is
emptied, and the journal lies in a folder of its own. The parent has no event loop, no thread and no
connection.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from harness.backends import Backend

from sim.flow_simulation import FlowSimulation
from sim.simulation import Simulation
from sim.world import World

__all__ = ["Verdict", "run_seed"]


class Verdict(msgspec.Struct):
    """What became of one seed."""

    seed: int
    kind: str
    is_clean: bool = False
    history: str = ""
    is_of_flows: bool = False
    jobs: int = 0
    """Jobs, or flows."""
    kills: int = 0
    faults: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    commands: int = 0
    seconds: float = 0.0
    """Virtual ones."""
    lease: float = 0.0
    slowest: float = 0.0
    """How long the slowest emission took."""
    cpu: float = 0.0
    """Seconds of the processor, of Python alone."""
    story: list[str] = msgspec.field(default_factory=list[str])
    """What went wrong, and the last events."""

    def line(self) -> str:
        unit = "flows" if self.is_of_flows else "jobs"
        return (
            f"seed {self.seed:<6} {self.kind:<20} {'clean' if self.is_clean else 'FLAWS'} {self.history}"
            f"  {self.jobs} {unit}, {self.kills} kills, {sum(self.faults.values())} faults, "
            f"{self.commands} commands, {self.seconds:.1f} s passed, slowest {self.slowest:.1f} s, "
            f"lease {self.lease:g} s, {self.cpu:.2f} s of CPU"
        )


def run_seed(
    seed: int,
    server: Backend,
    *,
    jobs: int,
    flows: int = 0,
    kind: str = "",
    tape: Path | None = None,
    within: int = 300,
) -> Verdict:
    """Run one seed in a process of its own; `tape` gets the whole history. It is ended after `within`
    seconds. With `flows` it is one of so many flows."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(within)
        status = 1
        try:
            verdict = _run(seed, server, jobs=jobs, flows=flows, kind=kind, tape=tape)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(msgspec.msgpack.encode(verdict))
            status = 0
        except BaseException:  # noqa: BLE001  (this process must not go on as its parent)
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status, usage = os.wait4(child, 0)
    if not told:
        return Verdict(seed, kind, story=[f"its process ended with status {status}"])
    verdict = msgspec.msgpack.decode(told, type=Verdict)
    verdict.cpu = usage.ru_utime + usage.ru_stime
    return verdict


def _run(seed: int, server: Backend, *, jobs: int, flows: int, kind: str, tape: Path | None) -> Verdict:
    gc.disable()  # a collection comes when it likes, and ends what nobody holds
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="eventbus-sim-")))
        file = exits.enter_context(tape.open("w", errors="surrogateescape")) if tape is not None else None
        simulation: World = (
            FlowSimulation(seed, folder, server, flows=flows, kind=kind, tape=file)
            if flows
            else Simulation(seed, folder, server, jobs=jobs, kind=kind, tape=file)
        )
        verdict = Verdict(seed, simulation.kind_name, lease=simulation.lease, is_of_flows=flows > 0)
        try:
            lines = asyncio.new_event_loop().run_until_complete(simulation.run())
        except BaseException as error:  # noqa: BLE001  (each is a flaw of this seed)
            verdict.story = ["".join(traceback.format_exception(error)).rstrip()]
        else:
            verdict.is_clean = not simulation.flaws
            verdict.story = [*lines, *simulation.flaws[:5], *simulation.stories]
            verdict.slowest = simulation.slowest
        network: Any = getattr(simulation, "network", None)
        if network is not None:
            verdict.history = simulation.history
            verdict.jobs, verdict.kills = simulation.size, simulation.kills
            verdict.faults, verdict.commands = dict(network.faults), network.calls
            verdict.seconds = simulation.seconds
            if not verdict.is_clean:
                verdict.story += ["the last events:", *(line.rstrip()[:400] for line in network.last)]
        return verdict
