"""Reading requests: bodies with a bound, orders of JSON and of forms, queries, and the names in paths."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request

from eventbus.dashboard.links import text_of
from eventbus.dashboard.problem import Problem

__all__ = ["names_in", "read_form", "read_order", "read_query", "to_order"]

T = TypeVar("T")

_MOST_BYTES = 2 * 1024 * 1024
_MOST_FIELDS = 1000
_LONGEST_QUERY = 8192


def names_in(request: Request) -> dict[str, str]:
    """Return the names in the path. Raises Problem for one that no id can be."""
    names = {name: text_of(str(part)) for name, part in request.path_params.items()}
    for name in names.values():
        if "\x00" in name or not name.isprintable():
            raise Problem(404, "there is nothing of that name")
    return names


def read_query(request: Request, kind: type[T]) -> T:
    """Return the query as a struct; what it does not know is left out. Raises Problem."""
    if len(request.url.query) > _LONGEST_QUERY:
        raise Problem(413, f"the query is longer than {_LONGEST_QUERY} characters")
    given: dict[str, Any] = {name: value for name, value in request.query_params.items() if value}
    for name in _repeatable(kind) & given.keys():
        given[name] = [value for value in request.query_params.getlist(name) if value]
    return to_order(given, kind, is_text=True)


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
    try:
        given = msgspec.json.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Problem(422, f"the body is not JSON: {error}") from None
    return to_order(given, kind, is_text=False)


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
    return dict(fields)


def to_order(given: Any, kind: type[T], *, is_text: bool) -> T:
    """Return a struct of what was given. `is_text`: numbers and flags come as text. Raises Problem."""
    try:
        return msgspec.convert(given, kind, strict=not is_text)
    except msgspec.ValidationError as error:
        detail, _, where = str(error).partition(" - at `")
        pointer = where.rstrip("`").replace("$", "").replace(".", "/") or ""
        raise Problem(422, str(error), errors=[{"pointer": pointer, "detail": detail}]) from None


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
