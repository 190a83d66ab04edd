"""Many emissions, each with an idempotency key: run it twice, and the second run does not repeat any work.

EVENTBUS_URL names the server. Without it an embedded server keeps its data in ./.eventbus, so that a second
run finds the outcomes of the first.
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus import Event, EventProvider, HandlerError, Retry


class Row(msgspec.Struct):
    number: int
    amount: int


row_read = Event(
    "row.read", payload=Row, result=int, key=lambda row: f"row-{row.number}", retry=Retry(attempts=1)
)
provider = EventProvider()
ran = 0


@provider.on(row_read, concurrency=100)
async def book(row: Row) -> int:
    global ran
    ran += 1
    if row.amount < 0:
        raise ValueError(f"row {row.number} has a negative amount")
    return row.amount * 2


async def main() -> None:
    rows = [Row(number, -1 if number == 500 else number) for number in range(1000)]
    async with provider, provider.worker():
        emissions = provider.emit_many(row_read, rows)
        total = 0
        for row, emission in zip(rows, emissions, strict=True):
            try:
                total += await emission
            except HandlerError as error:
                print(f"row {row.number}: {error.type_name}: {error.remote_message}")
        print(f"{total} in all; handlers ran {ran} times")


if __name__ == "__main__":
    asyncio.run(main())
