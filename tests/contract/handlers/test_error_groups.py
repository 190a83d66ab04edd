"""Groups of errors, as task groups raise them: attempts follow as the errors in them say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from importable.asking import Asked, ask_in_process, ask_twice

from eventbus import Batch, EventProvider, HandlerError, JobError, Retry, Unrecoverable
from eventbus.model.names import shown
from eventbus.telemetry.error_groups import ends_attempts, leaves_of
from eventbus.telemetry.failure import is_answer, mark_awaited
from workflows import FlowContext, FlowError, Pipeline, StepContext, Workflow, WorkflowProvider, durable, task

MakeProvider = Callable[..., EventProvider]

THRICE = Retry(3, delay=0)
WAYS = {"alone": 1, "group": 1, "nested": 1, "beside a final one": 1, "beside another": 3}
"""How the error comes, and how often its handler runs."""


class Below:
    """An event that fails at each attempt, of which it has one, and the counts of the runs."""

    def __init__(self, provider: EventProvider) -> None:
        self.provider = provider
        self.above = 0
        self.below = 0

        @provider.on("below", retry=Retry(1))
        async def below(_: None) -> None:
            self.below += 1
            raise ValueError("no luck")

    async def ask(self, how: str) -> None:
        self.above += 1
        await ask_twice(self.provider, how)


@pytest.mark.parametrize("how", WAYS)
async def test_in_a_handler_the_group_ends_its_attempts_as_its_errors_would(
    make_provider: MakeProvider, how: str
) -> None:
    provider = make_provider(retry=THRICE)
    below = Below(provider)

    @provider.on("above")
    async def above(payload: str) -> None:
        await below.ask(payload)

    async with provider, provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("above", how)
    assert (below.above, below.below) == (WAYS[how], WAYS[how])


async def test_a_process_tells_what_is_in_its_group(
    make_provider: MakeProvider, server_url: str, prefix: str
) -> None:
    cases = [
        *((how, THRICE, attempts) for how, attempts in WAYS.items()),
        ("alone", Retry(2, delay=0, only=(JobError,)), 2),
        ("group", Retry(2, delay=0, only=(JobError,)), 2),
        ("group", Retry(2, delay=0, only=(KeyError,)), 1),
        ("beside another", Retry(2, delay=0, never=(OSError,)), 1),
    ]
    provider = make_provider()
    below = Below(provider)
    for number, (_, rule, _) in enumerate(cases):
        provider.on(f"above-{number}", retry=rule, pool="process")(ask_in_process)
    async with provider, provider.worker():
        for number, (how, _, attempts) in enumerate(cases):
            asked = {"how": how, "url": server_url, "prefix": prefix}
            with pytest.raises(HandlerError) as caught:
                await provider.emit(f"above-{number}", asked, reply_timeout=0)
            assert (number, caught.value.attempts) == (number, attempts)
    assert below.below == sum(attempts for _, _, attempts in cases)


@pytest.mark.parametrize("how", WAYS)
async def test_each_job_of_a_batch_has_the_rule_for_what_its_call_raised(
    make_provider: MakeProvider, how: str
) -> None:
    provider = make_provider(retry=THRICE)
    below = Below(provider)

    @provider.on("above", batch=Batch(size=2, wait="30s"))
    async def above(payloads: list[str]) -> None:
        await below.ask(payloads[0])

    async with provider, provider.worker():
        for emission in provider.emit_many("above", [how, how]):
            with pytest.raises(HandlerError) as caught:
                await emission
            assert caught.value.attempts == WAYS[how]


async def test_of_a_batch_each_job_has_the_rule_for_its_own_error(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(2, delay=0))
    below = Below(provider)

    @provider.on("above", batch=Batch(size=2, wait="100ms"))
    async def above(payloads: list[str]) -> list[Exception]:
        errors: list[Exception] = []
        for how in payloads:
            try:
                await below.ask(how)
            except Exception as error:  # noqa: BLE001  (it is the outcome of this job)
                errors.append(error)
        return errors

    async with provider, provider.worker():
        attempts: dict[str, int] = {}
        emissions = dict(zip(WAYS, provider.emit_many("above", list(WAYS)), strict=True))
        for how, emission in emissions.items():
            with pytest.raises(HandlerError) as caught:
                await emission
            attempts[how] = caught.value.attempts
    assert attempts == {how: min(most, 2) for how, most in WAYS.items()}


def _flows(below: Below) -> dict[str, Any]:
    async def ask(ctx: StepContext[str]) -> None:
        await below.ask(ctx.input)

    found: dict[str, Any] = {}
    for kind in ("graph", "spread"):
        found[kind] = Workflow(f"{kind}-above", input=str, retry=THRICE, spread=kind == "spread")
        found[kind].step(ask)

    @task(retry=THRICE)
    async def ask_in_task(how: str) -> None:
        await below.ask(how)

    @durable("function-above")
    async def function(ctx: FlowContext[str]) -> None:
        await ctx.step(ask_in_task, ctx.input)

    async def ask_in_pipeline(given: Asked) -> None:
        await below.ask(given.how)

    pipeline = Pipeline("pipeline-above", input=Asked, output=Asked, retry=THRICE)
    return {**found, "function": function, "pipeline": pipeline.then(ask_in_pipeline).returns()}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", ["graph", "spread", "function", "pipeline"])
async def test_in_a_step_the_group_ends_its_attempts_as_its_errors_would(
    make_provider: MakeProvider, kind: str, how: str
) -> None:
    provider = make_provider()
    below = Below(provider)
    flows = WorkflowProvider(provider)
    definition = _flows(below)[kind]
    flows.register(definition)
    async with provider, provider.worker():
        handle = await flows.execute(definition, Asked(how) if kind == "pipeline" else how)
        with pytest.raises(FlowError):
            await handle.result(timeout=240)
    assert (below.above, below.below) == (WAYS[how], WAYS[how])


class Declared(Exception):
    pass


def _awaited() -> Exception:
    error = HandlerError(event="e", job_id="j", type_name="ValueError", remote_message="", attempts=1)
    mark_awaited(error)
    return error


def _group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", errors)


_RULES: list[tuple[Exception, Retry, bool]] = [
    (_awaited(), THRICE, True),
    (_group(_awaited()), THRICE, True),
    (_group(_awaited(), Unrecoverable(), Declared()), THRICE, True),
    (_group(_awaited(), ValueError()), THRICE, False),
    (_group(_group(_group(_awaited())), _awaited()), THRICE, True),
    (_group(_group(_group(ValueError())), _awaited()), THRICE, False),
    (_group(ValueError()), THRICE, False),
    (_group(ValueError()), Retry(3, never=(ValueError,)), True),
    (_group(ValueError(), OSError()), Retry(3, never=(ValueError,)), False),
    (_group(ValueError()), Retry(3, never=(ExceptionGroup,)), True),
    (_group(ValueError()), Retry(3, only=(ValueError,)), False),
    (_group(ValueError(), OSError()), Retry(3, only=(ValueError,)), False),
    (_group(OSError()), Retry(3, only=(ValueError,)), True),
    (_group(_awaited()), Retry(3, only=(ValueError,)), True),
    (_group(_awaited()), Retry(3, only=(HandlerError,)), False),
    (_group(_awaited()), Retry(3, only=(ExceptionGroup,)), False),
    (_group(_awaited()), Retry(3, only=(Exception,)), False),
    (_group(OSError()), Retry(3, only=(ExceptionGroup,)), False),
    (_group(OSError()), Retry(3, only=(ExceptionGroup,), never=(OSError,)), True),
    (_group(Unrecoverable()), Retry(3, only=(ExceptionGroup,)), True),
]


@pytest.mark.parametrize(("error", "rule", "ends"), _RULES, ids=shown)
def test_the_errors_in_a_group_decide(error: Exception, rule: Retry, ends: bool) -> None:
    def is_end(one: BaseException) -> bool:
        return is_answer(one, [Declared], [])

    assert ends_attempts(error, rule, is_end) is ends


def test_a_rollback_tries_again_after_a_group_of_failures_of_awaited_jobs() -> None:
    group = _group(_awaited(), Unrecoverable())
    assert not ends_attempts(group, THRICE, lambda _: False, is_undo=True)
    assert ends_attempts(_group(Unrecoverable()), THRICE, lambda _: False, is_undo=True)


def test_a_group_that_is_nested_thousands_of_times_is_judged() -> None:
    group = _group(_awaited())
    for _ in range(5000):
        group = _group(group)
    assert len(leaves_of(group)) == 1
    assert ends_attempts(group, THRICE, lambda _: False)
    while isinstance(group.exceptions[0], ExceptionGroup):  # Python frees it one by one
        group = group.exceptions[0]
