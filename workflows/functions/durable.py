"""The decorator that makes an async function a durable one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, Unpack

from workflows.definition.keywords import DurableKeywords
from workflows.functions.context import FlowContext
from workflows.functions.definition import Durable

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)


class DurableDecorator:
    """The decorator that `durable(...)` returns; it returns the definition."""

    def __init__(self, name: str, options: DurableKeywords) -> None:
        self._name = name
        self._options = options

    def __call__(self, function: Callable[[FlowContext[I]], Coroutine[Any, Any, O]], /) -> Durable[I, O]:
        """Make the definition. Raises DefinitionError as `durable` says."""
        return Durable(function, self._name, **self._options)


def durable(name: str, **options: Unpack[DurableKeywords]) -> DurableDecorator:
    """Make an async function a durable one: `async def order(ctx: FlowContext[Order]) -> Receipt`.

    A flow of it records each call of `ctx`. After a crash or a sleep the function runs again from its top,
    and recorded calls return at once what they returned before. So between these calls the code must do the
    same each time.

    The input type is that of the annotation `FlowContext[...]`. `output` is by default the annotated return
    type; `state` is the type of `ctx.state`. Types are those that msgspec converts, or pydantic models.
    `errors` are the declared errors: awaiting a flow raises them as themselves. They are answers, so a task
    that raises one is not retried, unless the error is in `retry_on` too. `signals` are those that it waits
    for: then a process that has this definition sends no other ones, and the function waits for no other;
    None accepts any. `retry` applies to tasks without a rule of their own (default: 3 attempts, exponential
    from 1 s). `timeout` bounds a whole flow; None or 0 is none. `concurrency` is the most flows of the
    function that one worker runs at a time, by default the provider's setting; a flow that sleeps or waits is
    not counted. Only workers that have a flow's `version` run it. `max_history` is the number of entries that
    a flow may record before `HistoryFull` is raised in it. `keep_completed` and `keep_failed` say how long
    ended flows are kept, as for an event.

    Raises DefinitionError for a value or a function that cannot be used.
    """
    return DurableDecorator(name, options)
