"""CPU-bound handlers in their own processes, a lifespan that they share, and middleware that times them."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from eventbus import CallNext, Event, EventContext, EventProvider, JobFacts


class Range(msgspec.Struct):
    first: int
    last: int


class Primes(msgspec.Struct):
    count: int


primes_wanted = Event("primes.wanted", payload=Range, result=Primes)
report_wanted = Event("report.wanted", payload=int, result=str)
provider = EventProvider()


@provider.lifespan
async def ledger() -> AsyncIterator[list[str]]:
    """Run around each worker; a program would open its database connections here."""
    lines: list[str] = []
    yield lines
    print(*lines, sep="\n")


@provider.use
async def timing(payload: Any, ctx: EventContext, call: CallNext) -> Any:
    began = time.monotonic()
    try:
        return await call(payload)
    finally:
        ctx.shared(ledger).append(f"{ctx.event}: {time.monotonic() - began:.3f} s")


@provider.on(primes_wanted, pool="process", concurrency=2, timeout="1 minute")
def count_primes(wanted: Range, facts: JobFacts) -> Primes:
    facts.log.info("counting", first=wanted.first)
    found = sum(
        all(n % divisor for divisor in range(2, int(n**0.5) + 1))
        for n in range(max(2, wanted.first), wanted.last)
    )
    return Primes(found)


@provider.on(report_wanted)
async def report(limit: int, ctx: EventContext) -> str:
    halves = [Range(0, limit // 2), Range(limit // 2, limit)]
    counts = [await each for each in ctx.emit_many(primes_wanted, halves)]
    return f"{sum(each.count for each in counts)} primes below {limit}"


async def main() -> None:
    async with provider, provider.worker():
        print(await provider.emit(report_wanted, 20_000))


if __name__ == "__main__":
    asyncio.run(main())
