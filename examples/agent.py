"""An agent: a model that calls tools in a loop, as a durable function. Its process is killed in the middle.

Each answer of the model and each result of a tool is recorded once. After the kill another process goes on
behind the last record, so no call is paid twice. The model here is a stand-in that costs nothing.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from eventbus import EventProvider
from workflows import FlowContext, WorkflowProvider, durable, step_key, task

provider = EventProvider(lease=1.0)
flows = WorkflowProvider(provider)


class Task(msgspec.Struct):
    question: str
    bill: str  # a file with a line for each call that was paid


class Thought(msgspec.Struct):
    tool: str = ""
    argument: str = ""
    answer: str = ""


class Progress(msgspec.Struct):
    calls: int
    now: str


_SCRIPT = [
    Thought(tool="search", argument="height of Everest"),
    Thought(tool="search", argument="height of K2"),
    Thought(tool="subtract", argument="8849 8611"),
    Thought(answer="Everest is 238 m higher than K2"),
]
_FACTS = {"height of Everest": "8849", "height of K2": "8611"}


def pay(bill: str, what: str) -> None:
    with Path(bill).open("a") as file:
        file.write(f"{what} [{step_key().rpartition('/')[2]}]\n")


@task(timeout="1 minute")
async def think(question: str, seen: list[str], bill: str) -> Thought:
    """Ask the model, with all that was seen so far."""
    await asyncio.sleep(0.1)
    pay(bill, f"model, {len(seen)} results seen, about {question!r}")
    return _SCRIPT[len(seen)]


@task
async def search(query: str, bill: str) -> str:
    pay(bill, f"search for {query!r}")
    return _FACTS[query]


@task
def subtract(numbers: str, bill: str) -> str:
    pay(bill, f"subtract {numbers}")
    first, second = numbers.split()
    return str(int(first) - int(second))


TOOLS = {"search": search, "subtract": subtract}


@durable("agent", state=Progress)
async def agent(ctx: FlowContext[Task]) -> str:
    seen: list[str] = []
    while True:
        thought = await ctx.step(think, ctx.input.question, seen, ctx.input.bill)
        if thought.answer:
            return thought.answer
        ctx.state = Progress(len(seen) + 1, f"{thought.tool} {thought.argument}")
        seen.append(await ctx.step(TOOLS[thought.tool], thought.argument, ctx.input.bill))


flows.register(agent)


async def work() -> None:
    async with provider, provider.worker() as worker:
        await worker.wait()


def start_worker() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, __file__, "work"], stderr=subprocess.DEVNULL)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bill = Path(folder) / "bill"
        worker = start_worker()
        try:
            async with provider:
                flow = await flows.execute(agent, Task("How much higher is Everest than K2?", str(bill)))
                while (state := await flow.state()) is None or state.calls < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                print(f"seen live: call {state.calls}, {state.now}", flush=True)
                worker.kill()
                worker.wait()
                print("the worker is killed; another one starts", flush=True)
                worker = start_worker()
                print(f"-> {await flow.result()}", flush=True)
        finally:
            worker.kill()
            worker.wait()
        for line in bill.read_text().splitlines():
            print(f"   paid: {line}", flush=True)


if __name__ == "__main__":
    asyncio.run(work() if sys.argv[1:] == ["work"] else main())
