"""Running the functions of a pipeline: the functions of the steps, conditions, rollbacks and hooks of its
workflow.

What must always hold: what a function gets follows from the records of the steps before it alone, so that
each attempt, in whatever worker, gets the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from eventbus import PayloadError, UsageError
from eventbus.lowlevel import Codec, shown
from workflows.definition.checks.signature import is_async, name_of
from workflows.definition.context import StepContext, codecs_of
from workflows.definition.workflow import Workflow
from workflows.pipelines.calls import PipelineCall
from workflows.pipelines.context import PipelineContext
from workflows.pipelines.fields import fields_of, whole
from workflows.pipelines.merging import Outputs, lay_changes, merge_outputs, merge_progress

_OUTPUT, _PROGRESS, _START = "o", "p", "s"
_OBJECT = dict[str, Any]

Function = Callable[..., Any]


class PipelineRun:
    """Makes the functions of a workflow from those of a pipeline, whose steps stand in `groups`."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        groups: list[list[str]],
        progress: Codec | None,
        make: Callable[[], Any] | None,
    ) -> None:
        """`groups` may still grow. `make` makes the progress that a flow begins with, and `progress` converts
        it.
        """
        self._workflow = workflow
        self._groups = groups
        self._progress = progress
        self._make = make

    def calling(self, call: PipelineCall) -> Function:
        """Return the function of a step."""

        async def run(ctx: StepContext[Any]) -> Any:
            context = await self._open(ctx)
            return self._record(call, await call.function(*call.arguments(context)), context)

        def run_in_thread(ctx: StepContext[Any]) -> Any:
            context = self._open_in_thread(ctx)
            return self._record(call, call.function(*call.arguments(context)), context)

        return run if call.is_async else run_in_thread

    def asking(self, call: PipelineCall) -> Function:
        """Return the function of a condition, which runs in the event loop."""

        async def ask(ctx: StepContext[Any]) -> Any:
            found = call.function(*call.arguments(await self._look(ctx)))
            return await found if call.is_async else found

        ask.__name__ = name_of(call.function)  # drawings tell it
        return ask

    def undoing(self, call: PipelineCall) -> Function:
        """Return the function of a rollback; its merged result has what the step gave."""

        async def undo(ctx: StepContext[Any], record: Any) -> Any:
            return await call.function(*call.arguments(await self._look(ctx, record)))

        def undo_in_thread(ctx: StepContext[Any], record: Any) -> Any:
            return call.function(*call.arguments(self._look_in_thread(ctx, record)))

        return undo if call.is_async else undo_in_thread

    def around(self, function: Function, *, reads: Callable[[Any], Any] | None = None) -> Function:
        """Return the function of a hook around each step. `reads` makes its second argument of what the
        workflow gives.
        """

        async def hook(ctx: StepContext[Any], *more: Any) -> Any:
            return await function(await self._look(ctx), *(reads(each) if reads else each for each in more))

        def hook_in_thread(ctx: StepContext[Any], *more: Any) -> Any:
            return function(self._look_in_thread(ctx), *(reads(each) if reads else each for each in more))

        return hook if is_async(function) else hook_in_thread

    def returning(self, call: PipelineCall | None) -> Function:
        """Return the function that makes the output, which has the annotation of the workflow's output."""
        output = self._workflow.output

        fields = fields_of(output)

        def of_result(context: PipelineContext[Any]) -> Any:
            result = {
                name: value for name, value in context.result.items() if fields is None or name in fields
            }
            return codecs_of(context.step_context).output.decode(msgspec.json.encode(result))

        async def make(ctx: StepContext[Any]) -> Any:
            context = await self._look(ctx)
            if call is None:
                return of_result(context)
            made = call.function(*call.arguments(context))
            return await made if call.is_async else made

        def make_in_thread(ctx: StepContext[Any]) -> Any:
            context = self._look_in_thread(ctx)
            assert call is not None  # noqa: S101  (otherwise `make` is chosen)
            return call.function(*call.arguments(context))

        chosen = make if call is None or call.is_async else make_in_thread
        chosen.__annotations__["return"] = output if call is None else call.returns
        return chosen

    # What functions get.

    async def _open(self, ctx: StepContext[Any]) -> PipelineContext[Any]:
        """Return the context of an attempt of a step, with the progress that an earlier attempt saved."""
        context = await self._look(ctx)
        if self._progress is not None and (saved := await ctx.saved(_OBJECT)) is not None:
            self._go_on(context, saved)
        return context

    def _open_in_thread(self, ctx: StepContext[Any]) -> PipelineContext[Any]:
        context = self._look_in_thread(ctx)
        if self._progress is not None and (saved := ctx.saved(_OBJECT).result()) is not None:
            self._go_on(context, saved)
        return context

    def _go_on(self, context: PipelineContext[Any], saved: dict[str, Any]) -> None:
        """Lay what an earlier attempt changed over the progress; earlier steps may have run anew since."""
        changed = lay_changes(saved[_START], saved[_PROGRESS], context.start)
        context.progress = self._read_progress(changed)

    async def _look(self, ctx: StepContext[Any], own: Any = None) -> PipelineContext[Any]:
        """Return the context of a function, with what the steps before it recorded. `own` is the record of an
        undone step.
        """
        found = {name: await ctx.load(name, default=None) for name in self._before(ctx.step)}
        return self._context(ctx, found, own)

    def _look_in_thread(self, ctx: StepContext[Any], own: Any = None) -> PipelineContext[Any]:
        found = {name: ctx.load(name, default=None).result() for name in self._before(ctx.step)}
        return self._context(ctx, found, own)

    def _before(self, step: str) -> list[str]:
        """Return the steps whose groups stand before that of a step; all of them for none."""
        names: list[str] = []
        for group in self._groups:
            if step in group:
                break
            names += group
        return names

    def _context(self, ctx: StepContext[Any], found: dict[str, Any], own: Any) -> PipelineContext[Any]:
        value: Any = whole(ctx.input, msgspec.json.decode(codecs_of(ctx).input.encode(ctx.input)))
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}  # of an untyped input
        if own is not None:
            found[ctx.step] = own
        name = self._workflow.name
        result = merge_outputs(given, self._parts(found, _OUTPUT), owner=name)
        progress: Any = None
        start: Any = None
        if self._progress is not None and self._make is not None:
            made = self._make()
            first = whole(made, msgspec.json.decode(self._progress.encode(made)))
            start = merge_progress(first, self._parts(found, _PROGRESS), owner=name)
            progress = self._read_progress(start)
        context = PipelineContext[Any](ctx, result, progress, lambda: self._save(context), start)
        return context

    def _parts(self, found: dict[str, Any], part: str) -> Outputs:
        return [
            [(name, found[name].get(part)) for name in group if found.get(name) is not None]
            for group in self._groups
        ]

    # What they give.

    def _record(self, call: PipelineCall, output: Any, context: PipelineContext[Any]) -> dict[str, Any]:
        """Return the record of a step. Raises PayloadError for an output that is neither an object
        nor None.
        """
        made = whole(output, msgspec.json.decode(call.gives.encode(output)))
        if made is not None and not isinstance(made, dict):
            raise PayloadError(
                f"step {context.step!r} of pipeline {self._workflow.name!r} returned {shown(output)}; "
                "expected an object, whose fields are laid over the merged result, or None",
                role="result",
            )
        if self._progress is None:
            return {_OUTPUT: made}
        return {_OUTPUT: made, _PROGRESS: self._progress_of(context)}

    def _read_progress(self, value: Any) -> Any:
        assert self._progress is not None  # noqa: S101  (asked by the callers)
        return self._progress.decode(msgspec.json.encode(value))

    def _save(self, context: PipelineContext[Any]) -> Awaitable[None]:
        if self._progress is None:
            raise UsageError(
                f"pipeline {self._workflow.name!r} has no progress: give it a type with `progress=`"
            )
        saved = {_START: context.start, _PROGRESS: self._progress_of(context)}
        return context.step_context.save(saved)

    def _progress_of(self, context: PipelineContext[Any]) -> Any:
        assert self._progress is not None  # noqa: S101  (asked by the callers)
        return whole(context.progress, msgspec.json.decode(self._progress.encode(context.progress)))


def read_output(record: Any) -> Any:
    """Return the output in the record of a step, as JSON."""
    return record[_OUTPUT]
