"""All rows of our own, in the order of the page."""

from __future__ import annotations

from benchmarks.own.demo import Demo
from benchmarks.own.fleet import Fleet
from benchmarks.own.flows import Breadth, DurableSequence, LocalSequence, MachineMoves, Sequence
from benchmarks.own.memory import Memory
from benchmarks.own.payloads import Payloads
from benchmarks.own.process import Idle, ServerCpu, WorkerCpu
from benchmarks.own.row import Row
from benchmarks.own.scale import Cancels, Emitters, Types, Waiting
from benchmarks.own.schedules import Firing
from benchmarks.own.waits import Signals, Sleepers

ROWS: tuple[Row, ...] = (
    ServerCpu(),
    Waiting(),
    Cancels(),
    Types(),
    Emitters(),
    Fleet(),
    Payloads(),
    WorkerCpu(),
    Idle(),
    Demo(),
    Memory(),
    LocalSequence(),
    DurableSequence(),
    MachineMoves(),
    Sequence(),
    Breadth(),
    Sleepers(),
    Signals(),
    Firing(),
)
