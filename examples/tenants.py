"""A client of a foreign API that allows each customer 10 calls a second, two at a time, for all workers.

One customer imports 100 contacts at once. The others, who come later with 3 each, do not wait for that. It
prints how many calls each has had after 0.8 and after 2.8 seconds.
"""

import asyncio
from collections import Counter

import msgspec

from eventbus import Event, EventProvider, Limit

provider = EventProvider(concurrency=20)


class Contact(msgspec.Struct):
    customer: str
    number: int


def customer_of(contact: Contact) -> str:
    return contact.customer


contact_added = Event(
    "contact.added", payload=Contact, limit=Limit(by=customer_of, each=2, each_rate="10/1s")
)
running: Counter[str] = Counter()
done: Counter[str] = Counter()
most = 0


@provider.on(contact_added)
async def send_to_crm(contact: Contact) -> None:
    global most
    running[contact.customer] += 1
    most = max(most, running[contact.customer])
    await asyncio.sleep(0.02)  # stands for a call of the API
    running[contact.customer] -= 1
    done[contact.customer] += 1


async def main() -> None:
    async with provider, provider.worker():
        emissions = provider.emit_many(contact_added, [Contact("acme", n) for n in range(100)])
        await provider.flush()
        others = [Contact(customer, n) for customer in ("bolt", "corp", "dune") for n in range(3)]
        emissions += provider.emit_many(contact_added, others)
        for seconds in (0.8, 2):
            await asyncio.sleep(seconds)
            print(", ".join(f"{customer}: {count}" for customer, count in sorted(done.items())))
        print(f"at most {most} calls of one customer at a time")
        for each in emissions:
            await each.cancel("the demo is over")


if __name__ == "__main__":
    asyncio.run(main())
