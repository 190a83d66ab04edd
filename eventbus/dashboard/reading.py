"""Reading requests: bodies with a bound, orders of JSON and of forms, queries, and the names in paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request

from eventbus.dashboard.links import text_of
from eventbus.dashboard.problem import Problem

T = TypeVar("T")

_MOST_BYTES = 2 * 1024 * 1024
_MOST_FIELDS = 1000
_LONGEST_QUERY = 8192
_LONGEST_NAME = 64
_DEEPEST = 100
"""How deep a value may be nested: what looks through values calls itself for each level."""


def names_in(request: Request) -> dict[str, str]:
    """Return the names in the path. Raises Problem for one that no id can be."""
    names = {name: text_of(str(part)) for name, part in request.path_params.items()}
    for name in names.values():
        if "\x00" in name or not name.isprintable():
            raise Problem(404, "there is nothing of that name")
    return names


def read_query(request: Request, kind: type[T], *also: str) -> T:
    """Return the query as a struct; `also` are parameters that somebody else reads.

    Raises Problem, for an unknown one too.
    """
    if len(request.url.query) > _LONGEST_QUERY:
        raise Problem(413, f"the query is longer than {_LONGEST_QUERY} characters")
    several = _repeatable(kind)
    given = [each for each in request.query_params.multi_items() if each[0] not in also]
    order: dict[str, Any] = {**_once_each([each for each in given if each[0] not in several])}
    for name, value in given:
        if name in several and value:
            order.setdefault(name, []).append(value)
    return to_order(order, kind, is_text=True)


@cache
def _repeatable(kind: type[Any]) -> frozenset[str]:
    """Return the fields that may be given several times, as `state=failed&state=cancelled`."""
    types = get_type_hints(kind)
    return frozenset(
        name
        for name, type_ in types.items()
        if list in (get_origin(each) for each in (type_, *get_args(type_)))
    )


async def read_order(request: Request, kind: type[T]) -> T:
    """Return the JSON body of an API request. Raises Problem."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await _read_body(request)
    # Foreign pages can post forms and plain text without asking, and no JSON.
    if media != "application/json" and (body or request.method != "DELETE"):
        raise Problem(415, f"expected application/json, got: {media or 'no content type'}")
    return to_order(read_json(body or b"{}", "the body"), kind, is_text=False)


def read_json(text: str | bytes, what: str) -> Any:
    """Return a value of JSON.

    Raises Problem, 422, which begins with `what` it is; also for one that is nested too deep.
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Problem(422, f"{what} is not JSON: {error}; nothing was changed") from None
    level: list[Any] = [found]
    for _ in range(_DEEPEST):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return found
    raise Problem(422, f"{what} is nested deeper than {_DEEPEST} levels; nothing was changed")


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that are not empty. Raises Problem."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise Problem(415, f"expected a form, got: {media or 'no content type'}")
    try:
        text = (await _read_body(request)).decode()
        fields = parse_qsl(text, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise Problem(422, f"the form cannot be read: {error}") from None
    return _once_each(fields)


def to_order(given: Any, kind: type[T], *, is_text: bool) -> T:
    """Return a struct of what was given. `is_text`: numbers and flags come as text. Raises Problem.

    A field that the order does not have is refused: whoever mistyped the name of a bound would do more than
    was meant.
    """
    if isinstance(given, Mapping):
        fields = [field.encode_name for field in msgspec.structs.fields(cast("Any", kind))]
        for name in cast("Mapping[str, Any]", given):
            if name not in fields:
                raise _unknown(name, fields)
    try:
        return msgspec.convert(given, kind, strict=not is_text)
    except msgspec.ValidationError as error:
        detail, _, where = str(error).partition(" - at `")
        pointer = where.rstrip("`").replace("$", "").replace(".", "/") or ""
        raise Problem(422, str(error), errors=[{"pointer": pointer, "detail": detail}]) from None


def _parts(value: Any) -> Iterable[Any]:
    """Return the lists and objects directly in a value."""
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        parts = cast("list[Any]", value)
    return [part for part in parts if isinstance(part, (dict, list))]


def _unknown(name: str, fields: list[str]) -> Problem:
    """Return what is said of a field that nobody reads, with the name that may have been meant."""
    close = get_close_matches(name, fields, 1)
    known = f"there are: {', '.join(fields)}" if fields else "there is none"
    meant = f"did you mean {close[0]}? " if close else ""
    detail = f"there is no field {name[:_LONGEST_NAME]!r} here, so nothing was done; {meant}{known}"
    pointer = name[:_LONGEST_NAME].replace("~", "~0").replace("/", "~1")
    return Problem(422, detail, errors=[{"pointer": f"/{pointer}", "detail": detail}])


def _once_each(given: list[tuple[str, str]]) -> dict[str, str]:
    """Return what is not empty, by its name.

    Raises Problem for a name that comes twice, because one of them would be lost.
    """
    found: dict[str, str] = {}
    for name, value in given:
        if not value:
            continue
        if name in found:
            raise Problem(422, f"{name[:_LONGEST_NAME]!r} is given twice, so nobody knows which one is meant")
        found[name] = value
    return found


async def _read_body(request: Request) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MOST_BYTES:
                raise Problem(413, f"the body is larger than {_MOST_BYTES} bytes")
            chunks.append(chunk)
    except ClientDisconnect:
        raise Problem(400, "the request ended before its body") from None
    return b"".join(chunks)
