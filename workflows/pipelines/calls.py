"""Calling a pipeline's function with what its parameters take: the merged result as a value of a type, and
the context.

    def fetch() | fetch(given) | fetch(ctx) | fetch(given, ctx)

A parameter that is annotated as PipelineContext gets the context; so does the second of two. The other one
gets the merged result, as a value of the type that it is annotated with.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from eventbus import DefinitionError
from eventbus.lowlevel import Codec, hints_of
from workflows.definition.checks.signature import check_callable, is_async, name_of, returned_by
from workflows.definition.codecs import MAX_VALUE
from workflows.pipelines.context import PipelineContext
from workflows.pipelines.fields import Field, check_object, fields_of


class PipelineCall:
    """One function of a pipeline, and how it is called."""

    def __init__(self, function: Any, where: str, *, is_about: bool = False) -> None:
        """Raise DefinitionError for a function with other parameters, or a type that is no JSON object.

        A function that is about a step, its condition or rollback, gets the context if it has one parameter
        without a type.
        """
        check_callable(function, where)
        self.function: Any = function
        self.is_async: bool = is_async(function)
        names = _parameters_of(function, where)
        hints = hints_of(function, extras=True)
        contexts = [name for name in names if _is_context(hints.get(name))] or names[1:]
        if is_about and not contexts and names and names[0] not in hints:
            contexts = names
        self._places: list[bool] = [name in contexts for name in names]
        given = next((name for name in names if name not in contexts), None)
        self.takes: Any = Any if given is None else hints.get(given, Any)
        if isinstance(self.takes, str):
            self.takes = Any
        check_object(self.takes, f"what {where} takes")
        self.fields: dict[str, Field] | None = fields_of(self.takes)
        self.returns: Any = returned_by(function)
        self.gives: Codec = Codec(self.returns, role="result", owner=where, max_bytes=MAX_VALUE)
        self._codec: Codec = Codec(self.takes, role="payload", owner=where, max_bytes=MAX_VALUE)

    def arguments(self, ctx: PipelineContext[Any]) -> list[Any]:
        """Return the arguments of one call. Raises PayloadError if the merged result does not fit the
        parameter's type.
        """
        return [ctx if is_context else self._read(ctx.result) for is_context in self._places]

    def _read(self, result: Mapping[str, Any]) -> Any:
        if self.fields is not None:
            result = {name: result[name] for name in self.fields if name in result}
        return self._codec.decode(msgspec.json.encode(dict(result)))


def _parameters_of(function: Any, where: str) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return []
    names = [
        each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    needed = [
        each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty
    ]
    if len(names) > 2 or needed:
        raise DefinitionError(
            f"expected {where} to take at most the merged result and the context; "
            f"the parameters of {name_of(function)} are: {', '.join(each.name for each in parameters)}"
        )
    return names


def _is_context(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return inspect.isclass(kind) and issubclass(kind, PipelineContext)
