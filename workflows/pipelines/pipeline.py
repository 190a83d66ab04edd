"""Pipelines: steps that run in a row and share one merged result, as a builder of workflows.

    Pipeline("sync", input=In, output=Out).then(fetch).parallel(left, right).returns(total)   -> a Workflow

Each step takes what it needs of the merged result (`merging`), and its output is laid over it. The workflow
that `returns` makes is one like any other: it is local first, its steps are recorded, retried and undone as
those of a graph.

    step's record = {"o": the output, JSON, "p": the progress at its end, if the pipeline has one}

What must always hold: a step sees the outputs of all steps before its group and none of its own group; what a
step takes is checked when the pipeline is made, as far as the types tell, otherwise before the step is
called; a pipeline that has no `returns` is no workflow, so nobody can start it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast, overload

from eventbus import DefinitionError
from eventbus.lowlevel import Codec, check_options, shown
from workflows.definition.checks.signature import name_of
from workflows.definition.codecs import MAX_VALUE
from workflows.definition.flow_definition import definition_in
from workflows.definition.keywords import PipelineKeywords, WorkflowKeywords
from workflows.definition.step import Step, step
from workflows.definition.workflow import Workflow
from workflows.errors import ConflictError
from workflows.pipelines.calls import PipelineCall
from workflows.pipelines.fields import Field, check_has, check_object, fields_of
from workflows.pipelines.running import PipelineRun, read_output

if TYPE_CHECKING:
    from collections.abc import Mapping

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)
# The overloads of __init__ annotate `self`, which needs type variables other than those of the class.
IT = TypeVar("IT")
OT = TypeVar("OT")


class Pipeline(Generic[I, O]):
    """A builder of a workflow whose steps share one merged result. `returns` ends it, and returns the
    workflow.
    """

    @overload
    def __init__(
        self: Pipeline[IT, OT],
        name: str,
        *,
        input: type[IT],
        output: type[OT],
        progress: type[Any] | None = ...,
        data: Callable[..., Any] | None = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[IT, Any],
        name: str,
        *,
        input: type[IT],
        output: Any = ...,
        progress: type[Any] | None = ...,
        data: Callable[..., Any] | None = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[Any, OT],
        name: str,
        *,
        input: Any = ...,
        output: type[OT],
        progress: type[Any] | None = ...,
        data: Callable[..., Any] | None = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[Any, Any],
        name: str,
        *,
        input: Any = ...,
        output: Any = ...,
        progress: type[Any] | None = ...,
        data: Callable[..., Any] | None = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        input: Any = Any,  # noqa: A002  (the word of the glossary)
        output: Any = Any,
        progress: type[Any] | None = None,
        data: Callable[..., Any] | None = None,
        **options: Unpack[WorkflowKeywords],
    ) -> None:
        """Begin a pipeline. `input` and `output` are types whose values are JSON objects, or `Any`.

        `progress` is a type that can be made without arguments: `ctx.progress` is a value of it, which steps
        change; it is recorded with each step that ends, and by `ctx.save()`. `data(ctx)` makes `ctx.data`,
        once for each activation: a flow that moves to another worker gets it anew, and it is never stored.
        `options` are those of a Workflow. Raises DefinitionError for a value that cannot be used.
        """
        self.workflow: Workflow[I, O] = Workflow(name, input=input, output=output, **options)
        self.workflow.errors = (*self.workflow.errors, ConflictError)  # who awaits a flow gets it as itself
        self._where = f"pipeline {name!r}"
        check_object(input, f"the input of {self._where}")
        self._groups: list[list[str]] = []
        self._run = PipelineRun(self.workflow, self._groups, _progress_codec(progress, self._where), progress)
        self._known: Mapping[str, Field] | None = _from(fields_of(input), "the input", is_sure=True)
        self._is_done = False
        if data is not None:
            self.workflow.data(data)

    def then(
        self,
        function: Callable[..., Any],
        /,
        *,
        when: Callable[..., Any] | None = None,
        rollback: Callable[..., Any] | None = None,
        **options: Unpack[PipelineKeywords],
    ) -> Self:
        """Add a step that runs when all before it have ended.

        `function` takes the merged result, as a value of the type that its parameter is annotated with, the
        context, both or none of them. What it returns is its output: an object, whose fields are laid over
        the merged result, or None. If `when(ctx)` is false, the step is skipped and gives nothing.
        `rollback(ctx)` undoes the step; in it `ctx.result` has what the step gave, too. `options` are those
        of `Workflow.step`. Raises DefinitionError.
        """
        self._check_open("then")
        self._add([self._made(function, options, when=when, rollback=rollback)], may_skip=when is not None)
        return self

    def parallel(self, *functions: Callable[..., Any], **options: Unpack[PipelineKeywords]) -> Self:
        """Add steps that run side by side: each sees the merged result of the steps before the group.

        They must not write the same field: that raises DefinitionError where the types tell, otherwise the
        flow fails with ConflictError. None of them can have a condition. `options` count for each of them.
        """
        self._check_open("parallel")
        if len(functions) < 2:
            raise DefinitionError(
                f"expected parallel of {self._where} to get at least two steps, got: {len(functions)}; "
                "use `then` for one"
            )
        if "when" in options or "rollback" in options:
            raise DefinitionError(
                f"the steps of a parallel group of {self._where} can have no condition (when) "
                "and no rollback; use `then`"
            )
        self._add([self._made(function, options) for function in functions], may_skip=False)
        return self

    def before_each(self, function: Callable[..., Any], /) -> Self:
        """Call `function(ctx)` before each attempt of each step, as `Workflow.before_each` does."""
        self._check_open("before_each")
        self.workflow.before_each(self._run.around(function))
        return self

    def after_each(self, function: Callable[..., Any], /) -> Self:
        """Call `function(ctx, output)` after each attempt that returned, as `Workflow.after_each` does;
        `output` is JSON.
        """
        self._check_open("after_each")
        self.workflow.after_each(self._run.around(function, reads=read_output))
        return self

    def on_error(self, function: Callable[..., Any], /) -> Self:
        """Call `function(ctx, error)` after each attempt that raised; if it returns False, no further attempt
        follows.
        """
        self._check_open("on_error")
        self.workflow.on_error(self._run.around(function))
        return self

    def returns(self, function: Callable[..., Any] | None = None, /) -> Workflow[I, O]:
        """End the pipeline and return its workflow. Without a function its output is the merged result.

        `function` is called as a step is, after the last one, and returns the output. Raises DefinitionError.
        """
        self._check_open("returns")
        if not self._groups:
            raise DefinitionError(f"{self._where} has no steps; add some with `then` and `parallel`")
        where = f"the function that `returns` of {self._where} got"
        output = self.workflow.output
        call = None if function is None else PipelineCall(function, where)
        if call is not None:
            check_has(self._known, call.fields, where)
        else:
            check_object(output, f"the output of {self._where}")
            check_has(self._known, fields_of(output), f"the output of {self._where}")
        self.workflow.completed(self._run.returning(call))
        self._is_done = True
        return self.workflow

    def _made(
        self,
        function: Callable[..., Any],
        options: Any,
        *,
        when: Callable[..., Any] | None = None,
        rollback: Callable[..., Any] | None = None,
    ) -> tuple[Step[Any, Any], PipelineCall]:
        if isinstance(function, Step) or definition_in(function) is not None:
            raise DefinitionError(
                f"expected a function as a step of {self._where}, got: {shown(cast('Any', function))}; the "
                "steps of a pipeline are functions, and their options go to `then`; a workflow that has "
                "flows of other ones as steps is a Workflow"
            )
        check_options({**options}, PipelineKeywords, f"a step of {self._where}")
        name = options.get("name") or name_of(function)
        where = f"step {name!r} of {self._where}"
        if options.get("pool") == "process":
            raise DefinitionError(
                f"{where} cannot run in a process, because it shares the merged result of its flow"
            )
        call, run = PipelineCall(function, where), self._run
        check_has(self._known, call.fields, where)
        check_object(call.returns, f"what {where} returns")
        chosen: dict[str, Any] = {**options, "name": name}
        if when is not None:
            chosen["when"] = run.asking(PipelineCall(when, f"the condition (when) of {where}", is_about=True))
        undo = (
            None
            if rollback is None
            else run.undoing(PipelineCall(rollback, f"the rollback of {where}", is_about=True))
        )
        made = cast("Step[Any, Any]", step(run.calling(call), rollback=undo, **chosen))
        made.keeps_saved = True
        return made, call

    def _add(self, made: list[tuple[Step[Any, Any], PipelineCall]], *, may_skip: bool) -> None:
        given = [(each.name, fields_of(call.returns)) for each, call in made]
        self._check_siblings(given)
        steps = [each for each, _ in made]
        if len(steps) == 1:
            self.workflow.then(*steps)
        else:
            self.workflow.parallel(*steps)
        self._groups.append([each.name for each in steps])
        for name, (_, call) in zip([each.name for each in steps], made, strict=True):
            if call.returns in (None, type(None)):
                continue
            found = _from(fields_of(call.returns), f"step {name!r}", is_sure=not may_skip)
            self._known = None if found is None or self._known is None else _over(self._known, found)

    def _check_siblings(self, given: list[tuple[str, dict[str, Field] | None]]) -> None:
        writers: dict[str, str] = {}
        for name, fields in given:
            for key in fields or ():
                if key in writers:
                    raise DefinitionError(
                        f"steps {writers[key]!r} and {name!r} of {self._where} run side by side, and both "
                        f"give the field {key!r}; give it another name in one of them, or let one run after "
                        "the other"
                    )
                writers[key] = name

    def _check_open(self, method: str) -> None:
        if self._is_done:
            raise DefinitionError(
                f"{self._where} is done, because `returns` was called; call {method} before it"
            )

    def __repr__(self) -> str:
        return f"Pipeline({self.workflow.name!r})"


def _progress_codec(kind: Any, where: str) -> Codec | None:
    if kind is None:
        return None
    check_object(kind, f"the progress of {where}")
    try:
        kind()
    except Exception as error:
        raise DefinitionError(
            f"the progress of {where} cannot be made without arguments: {error}; give its fields defaults"
        ) from error
    return Codec(kind, role="progress", owner=where, max_bytes=MAX_VALUE)


def _from(fields: dict[str, Field] | None, source: str, *, is_sure: bool) -> dict[str, Field] | None:
    if fields is None:
        return None
    return {
        name: field._replace(source=source, is_sure=is_sure and field.is_sure)
        for name, field in fields.items()
    }


def _over(known: Mapping[str, Field], found: Mapping[str, Field]) -> dict[str, Field]:
    """Return what is known with what a step gives over it. A field that was sure before stays sure."""
    merged = dict(known)
    for name, field in found.items():
        before = merged.get(name)
        is_sure = field.is_sure or (before is not None and before.is_sure)
        kind = field.type if field.is_sure or before is None or before.type is field.type else Any
        merged[name] = field._replace(is_sure=is_sure, type=kind)
    return merged
