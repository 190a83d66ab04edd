"""A text that a person reviews: a state machine that waits for days, and outlives its workers and server.

Run it, and answer from another terminal, also after it was stopped and started again:

    python review.py
    eventbus flows trigger ID approve '{"ok": true, "by": "Ada"}'

Without a terminal, or with `--demo`, it stops everything while the machine waits, starts again, and answers
by itself.
"""

import asyncio
import sys

import msgspec

from eventbus import EventProvider, Retry
from workflows import END, FlowHandle, MachineContext, Settled, StateMachine, WorkflowProvider, transition


class Draft(msgspec.Struct):
    topic: str
    text: str = ""
    rounds: int = 0


class Verdict(msgspec.Struct):
    ok: bool
    by: str


class Summary(msgspec.Struct):
    words: int


def say(text: str) -> None:
    print(text, flush=True)


class Spelling(StateMachine[str], name="spelling", start="unread"):
    """A check of one word; the review starts one for each."""

    @transition("unread", to=END)
    async def check(self, ctx: MachineContext[str]) -> bool:
        return ctx.state.isalpha()


class Review(StateMachine[Draft], name="review", start="draft"):
    @transition(
        "draft", to="checking", retry=Retry(attempts=3, delay=0.1, max_delay=30), error_place="broken"
    )
    async def write(self, ctx: MachineContext[Draft]) -> None:
        ctx.state.rounds += 1
        ctx.state.text = f"all about {ctx.state.topic}"
        ctx.save("summary", Summary(words=3))
        ctx.children(Spelling, ctx.state.text.split())
        say(f"write, attempt {ctx.attempt}")
        if ctx.attempt == 1 and ctx.state.rounds == 1:
            raise ConnectionError("the writer is away")

    @transition("checking", to="waiting", after="all_settled")
    async def note(self, ctx: MachineContext[Draft], settled: Settled) -> None:
        say(f"checked {len(settled.results)} words of {ctx.state.text!r}")

    @transition("waiting", to="approved", wait=Verdict, when=lambda _, verdict: verdict.ok)
    async def approve(self, ctx: MachineContext[Draft], verdict: Verdict) -> None:
        say(f"round {ctx.state.rounds} approved by {verdict.by}")

    @transition("waiting", to="draft", wait=Verdict)
    async def send_back(self, ctx: MachineContext[Draft], verdict: Verdict) -> None:
        say(f"round {ctx.state.rounds} sent back by {verdict.by}")

    @transition("approved", to=END)
    async def publish(self, ctx: MachineContext[Draft]) -> str:
        return f"{ctx.state.text!r} after {ctx.state.rounds} rounds"


def open_program() -> tuple[EventProvider, WorkflowProvider]:
    provider = EventProvider()
    flows = WorkflowProvider(provider)
    flows.register(Review)
    flows.register(Spelling)
    return provider, flows


async def wait_for_person(flow: FlowHandle[str]) -> None:
    while True:
        report = await flow.report()
        if report.machine is not None and "approve" in report.machine.accepts:
            return
        await asyncio.sleep(0.02)


async def answer(flow_id: str, *words: str) -> str:
    """Answer as a person does, in a program of its own; return what that tells."""
    command = [sys.executable, "-m", "eventbus", "flows", "trigger", flow_id, *words]
    terminal = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await terminal.communicate()
    return f"$ eventbus flows trigger ID {' '.join(words)}\n{told.decode().strip().replace(flow_id, 'ID')}"


async def main() -> None:
    provider, flows = open_program()
    async with provider, provider.worker():
        flow = await flows.execute(Review, Draft("chairs"), idempotency_key="chairs")
        if "--demo" not in sys.argv and sys.stdin.isatty():
            say(f'answer with: eventbus flows trigger {flow.id} approve \'{{"ok": true, "by": "Ada"}}\'')
            say(f"-> {await flow.result()}")
            return
        await wait_for_person(flow)
        say("it waits; everything stops")
    provider, flows = open_program()
    async with provider, provider.worker():
        say("everything has started again")
        flow = flows.handle(flow.id, Review)
        say(await answer(flow.id, "publish", "null"))
        await flow.trigger(Review.send_back, Verdict(ok=False, by="Ben"))
        while (await flow.state()).rounds < 2:  # noqa: ASYNC110  (the server notifies nobody)
            await asyncio.sleep(0.02)
        await wait_for_person(flow)
        told = await answer(flow.id, "approve", '{"ok": true, "by": "Ada"}')
        result = await flow.result()
        say(f"{told}\n-> {result}")
        machine = (await flow.report()).machine
        assert machine is not None
        for move in machine.moves:
            say(
                (
                    f"   {move.version} {move.kind}: {move.transition}, "
                    f"{move.source} -> {move.target} {move.error}"
                ).rstrip()
            )


if __name__ == "__main__":
    asyncio.run(main())
