"""What limits cost the server: `python -m benchmarks.limits URL`.

Jobs are added, and drained by turns of 50, each of which settles what the one before has claimed, as a busy
worker does: from a queue without a limit, from one with a limit, and from one whose jobs have 50 limit keys,
in turns of 4. The kinds take rounds in turns, each in a queue of its own. It prints the server's time for
each job, and how that compares with no limit: the shortest of all rounds. The prefix is its own, and all its
keys are removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
from typing import Any, NamedTuple, cast

import redis

from eventbus import EventProvider, Limit
from eventbus.store.scripting.packing import AddRows, TurnRequest
from eventbus.store.scripting.script_rows import AddQueue, AddRow, SettleRow, TurnQueue
from eventbus.store.store import Store

_WANT = 50
_KEYS = 50
_DAY = 86_400_000


class _Kind(NamedTuple):
    """What the queue of a round has."""

    name: str
    limit: Limit | None
    keys: int


_KINDS = [
    _Kind("no limit", None, 0),
    _Kind("one limit", Limit(at_once=1000), 0),
    _Kind(f"{_KEYS} limit keys, each with a limit", Limit(at_once=1000, each=20), _KEYS),
]


async def _add(store: Store, queue: str, kind: _Kind, count: int) -> None:
    keys = [f"tenant{n % kind.keys}" if kind.keys else "" for n in range(count)]
    random.shuffle(keys)
    rows = [
        AddRow(f"{queue}-{n}", 1, '{"d":1}', "", "", "", "", 0, 0, 0, 0, "", key)
        for n, key in enumerate(keys)
    ]
    for first in range(0, count, 200):
        await store.add("", [AddQueue(queue, 1, "")], AddRows(rows[first : first + 200]), deadline=10.0**12)


async def _drain(store: Store, queue: str, lane: str) -> int:
    done, settles, call = 0, list[SettleRow](), 0
    while True:
        call += 1
        answer = await store.turn(
            TurnRequest(
                lane=lane,
                call=call,
                lease_ms=60_000,
                pool=f"{lane}-pool",
                idle=0,
                want=_WANT,
                max_bytes=1 << 20,
                queues=[TurnQueue(queue, 1000, 10_000, 3_600_000, 10_000, 7 * _DAY, _DAY)],
                settles=settles,
                appends=[],
            )
        )
        settles = [SettleRow(claim.id, answer.token, "completed", "", "1", 0) for claim in answer.claims]
        done += len(settles)
        if not settles:
            return done


def _busy(client: Any) -> float:
    """Return the time of processors that the server has used, seconds: a busy machine does not change it
    much.
    """
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


async def _measure(url: str, count: int, rounds: int) -> None:
    client = cast("Any", redis.Redis).from_url(url)
    prefix = f"bench-{secrets.token_hex(4)}"
    took: dict[str, list[float]] = {kind.name: [] for kind in _KINDS}
    async with EventProvider(url, prefix=prefix) as provider:
        store = provider.schedules._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for number in range(rounds):
            for kind in random.sample(_KINDS, len(_KINDS)):
                queue = f"event.{kind.name.partition(' ')[0]}{number}"
                if kind.limit is not None:
                    await provider.set_limit(queue, kind.limit)
                await _add(store, queue, kind, count)
                before = _busy(client)
                done = await _drain(store, queue, f"w{queue}")
                assert done == count, f"{done} jobs of {count}"
                took[kind.name].append((_busy(client) - before) / count * 1e6)
    plain = min(took[_KINDS[0].name])
    for name, times in took.items():
        print(
            f"{name}: {min(times):.2f} us of the server for each job, {min(times) / plain:.2f} x of no limit"
        )
    keys = list(client.scan_iter(f"{prefix}:*", count=1000))
    for first in range(0, len(keys), 1000):
        client.unlink(*keys[first : first + 1000])


def main() -> None:
    """Measure once, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="a server on which nothing else runs")
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    asyncio.run(_measure(given.url, given.count, given.rounds))


if __name__ == "__main__":
    main()
