"""Known defects, put back one at a time: at which seed does the simulation find each?

    python integration/sim/defects.py --seeds 100
    python integration/sim/defects.py --only fence --only gap
    python integration/sim/defects.py --seeds 300 --only retry      of jobs or flows, as the defect is

A defect is a replacement of text in a copy of the tree. What no seed finds is listed; the worth of the
simulation is as large as its faults and what it demands, and this table measures that. Ends with status 0.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from eventbus.errors import UsageError

__all__ = ["DEFECTS", "Defect", "put_into"]

ROOT = Path(__file__).resolve().parents[2]
_LUA = "eventbus/store/lua"


class Defect(NamedTuple):
    """One text of one file, and what stands there instead."""

    name: str
    file: str
    old: str
    new: str
    is_of_flows: bool = False
    """Whether the simulation of flows is to find it."""


DEFECTS = [
    Defect(
        "slot of a limit not freed by a settle",
        f"{_LUA}/turn.lua",
        "load_slots() slots.release_all(settles.slotted, now) end",
        "load_slots() end",
    ),
    Defect(
        "slot of a limit not freed by a rescue",
        f"{_LUA}/rescue.lua",
        "  slots.release(job.lease.hold, now)\n",
        "",
    ),
    Defect(
        "repeated turn not recognised by its number",
        f"{_LUA}/turn.lua",
        "  if last[1] == call then\n",
        "  if false then\n",
    ),
    Defect(
        "older copy of a turn not refused", f"{_LUA}/turn.lua", "  if last[1] > call then", "  if false then"
    ),
    Defect(
        "renewal does not give back unknown holds",
        f"{_LUA}/renew.lua",
        "if #unknown > 0 then",
        "if false then",
    ),
    Defect(
        "renewal gives back what is on its way",
        f"{_LUA}/renew.lua",
        "  return not lane or tonumber(call) <= (lane == '' and first or second)",
        "  return true",
    ),
    Defect(
        "repeated plain add not recognised by its id",
        f"{_LUA}/lib/plain_rows.lua",
        "  local is_new = redis.pcall('MSETNX', unpack(records))\n",
        "  redis.call('MSET', unpack(records))\n  local is_new = 1\n",
    ),
    Defect(
        "repeated add with options not recognised by its id",
        f"{_LUA}/lib/accepting.lua",
        "  if redis.call('EXISTS', shard.job_root .. id) == 1 then return nil end\n",
        "",
    ),
    Defect(
        "hand-over not taken back",
        f"{_LUA}/lib/chores.lua",
        "if worker then giving_back",
        "if false then giving_back",
    ),
    Defect(
        "no fence of a settle",
        f"{_LUA}/lib/settling.lua",
        "    if is_whole or hold and Hold.has_token(hold, args.values[row + 2]) then\n",
        "    if hold then\n",
    ),
    Defect(
        "no fence of the short settle",
        f"{_LUA}/settle_one.lua",
        "if not hold or Hold.token(hold) ~= worker .. ':h' then",
        "if not hold then",
    ),
    Defect(
        "settles not put back after a failed turn",
        "eventbus/engine/claiming/claimer.py",
        "            self.settles.put_back(settles)\n",
        "",
    ),
    Defect(
        "confirmation of a hand-over not repeated",
        "eventbus/store/connection/wake_reader.py",
        "        if not again:\n            return\n",
        "        return\n",
    ),
    Defect(
        "gap of the reply stream not noted",
        "eventbus/emit/reply_reader.py",
        "                self._attendance.note_gap()  # outcomes",
        "                # outcomes",
    ),
    Defect(
        "gap of a lost reply stream not noted",
        "eventbus/store/reply_stream.py",
        "            self._on_gone()\n",
        "",
    ),
    Defect(
        "lease lost, handler not cancelled",
        "eventbus/engine/lease_keeper.py",
        "            self._in_loop(self._executor.lose, [(job, tokens[job]) for job in lost])\n",
        "            del tokens\n",
    ),
    Defect(
        "unsettled jobs missing in a renewal",
        "eventbus/engine/lease_keeper.py",
        "        rows += list(self._unsettled)\n",
        "",
    ),
    Defect(
        "turn given up keeps its number",
        "eventbus/engine/claiming/claimer.py",
        "            lane.done = lane.call\n            raise\n",
        "            raise\n",
    ),
    Defect(
        "queues of a failed turn not asked again",
        "eventbus/engine/claiming/claimer.py",
        "            self._rotation.unanswered(asked)\n",
        "",
    ),
    Defect(
        "what a retry keeps behind a call that runs again must be asked for",
        "workflows/functions/calls/kept.py",
        "        if number in kept.loose or reach.has(entry.place):\n",
        "        if False:\n",
        is_of_flows=True,
    ),
    Defect(
        "random numbers and ids follow from the run of the retry",
        "workflows/distributed/functions/durable_flow.py",
        "                seed=kept.seed_of(self._message.run),\n",
        "                seed=kept.run_of(self._message.run),\n",
        is_of_flows=True,
    ),
    Defect(
        "move of a machine not recorded if a cancel comes before it",
        "workflows/machines/run.py",
        "            self._broken = error\n            return instead\n",
        "            raise\n",
        is_of_flows=True,
    ),
    Defect(
        "body of a machine that was cut and finished does not count",
        "workflows/machines/firing.py",
        "attempt.run(cut_on_cancel=True)",
        "attempt.run()",
        is_of_flows=True,
    ),
    Defect(
        "message of an old cancel hits the next run",
        "eventbus/engine/wake_listener.py",
        "            reader.ask_cancelled(message.removeprefix(_CANCEL), self._claimer.executor.cancel)\n",
        "            running = list(self._claimer.executor.running.values())\n"
        "            named = [each.job for each in running if each.job.id == message.removeprefix(_CANCEL)]\n"
        "            self._claimer.executor.cancel([(job.id, job.token) for job in named])\n",
    ),
    Defect(
        "signal whose answer is lost is taken twice",
        f"{_LUA}/signal.lua",
        "if has_word(texts[2], word) then return 'sent' end",
        "if is_trigger and has_word(texts[2], word) then return 'sent' end",
        is_of_flows=True,
    ),
]


def put_into(defect: Defect, tree: Path) -> None:
    """Put a defect into a copy of the tree. Raises UsageError if its text is not there exactly once."""
    file = tree / defect.file
    text = file.read_text()
    if text.count(defect.old) != 1:
        raise UsageError(f"{defect.name}: {defect.file} has its text {text.count(defect.old)} times")
    file.write_text(text.replace(defect.old, defect.new))


def _copy(to: Path) -> Path:
    for name in ("eventbus", "workflows", "integration", "tests"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    return to


def _try(defect: Defect, words: list[str]) -> str:
    """Return what the simulation says of a defect."""
    with tempfile.TemporaryDirectory(prefix="eventbus-defect-") as folder:
        tree = _copy(Path(folder))
        put_into(defect, tree)
        with subprocess.Popen(
            [sys.executable, tree / "integration" / "sim.py", "--stop", *words],
            env={"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as ran:
            try:
                told, _ = ran.communicate()
            except BaseException:
                ran.terminate()  # it ends its server
                raise
    return _read(told, ran.returncode)


def _read(printed: str, status: int) -> str:
    """Return at which seed the program found something, and what."""
    seeds = re.findall(r"^seed .*", printed, re.MULTILINE)
    flaws = [line for line in seeds if " FLAWS " in line]
    if not flaws:
        return f"not found in {len(seeds)} seeds" if status == 0 else f"no answer:\n{printed[-1000:]}"
    why = re.search(r"^seed .* FLAWS .*\n((?:.*\n)*?)the last events:", printed, re.MULTILINE)
    told = [line for line in (why[1] if why else "").splitlines() if _is_flaw(line)]
    return f"at seed {flaws[0].split()[1]}: {'; '.join(told)[:300]}"


def _is_flaw(line: str) -> bool:
    """Return whether a line of the reconciliation tells of something wrong."""
    if re.match(r"(emitted|completed|failed|outcomes told|runs of|rescued|counts:) ", line):
        return False
    return not re.search(r" {2,}0$", line)


def main() -> int:
    parser = argparse.ArgumentParser(description="Known defects, and the first seed that finds each.")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--flows", type=int, default=16, help="of each seed, for a defect of flows")
    parser.add_argument("--only", action="append", default=[], help="defects with this in their name")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [each for each in DEFECTS if not asked.only or any(word in each.name for word in asked.only)]
    words = ["--first", str(asked.first), "--seeds", str(asked.seeds)]
    for defect in chosen:
        size = ["--flows", str(asked.flows)] if defect.is_of_flows else ["--jobs", str(asked.jobs)]
        print(f"{defect.name:<66} {_try(defect, [*words, *size])}", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
