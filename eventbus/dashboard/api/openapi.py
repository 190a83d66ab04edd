"""The description of the API, OpenAPI 3.1, made from its table and from the structs that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from eventbus._version import __version__
from eventbus.dashboard.api.stream import MEDIA_TYPE as STREAM_TYPE
from eventbus.dashboard.api.table import ACTS, READS, Act
from eventbus.dashboard.desk.desk import Change
from eventbus.dashboard.desk.watching.tail import ChangeView, TailQuery
from eventbus.dashboard.problem import MEDIA_TYPE, STATUSES

__all__ = ["describe"]

_REFS = "#/components/schemas/{name}"
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "instance"],
}


def describe() -> dict[str, Any]:
    """Return the document. Paths are below `<base>/api/v1`."""
    kinds = {each.answer for each in READS} | {each.order for each in ACTS} | {Change}
    kinds |= {ChangeView}
    queries = {TailQuery, *(each.query for each in READS)}
    found = sorted(kinds | queries, key=lambda kind: kind.__name__)
    refs, schemas = msgspec.json.schema_components(found, ref_template=_REFS)
    ref_of = dict(zip(found, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {
        "/": {"get": _operation("What the caller may do, and links.", [], {"type": "object"})},
        "/openapi.json": {"get": _operation("This document.", [], {"type": "object"})},
    }
    paths["/stream"] = {"get": _describe_stream(ref_of, schemas)}
    for row in READS:
        parameters = [*_in_path(row.path), *_in_query(row.query, schemas)]
        paths.setdefault(row.path, {})["get"] = _operation(row.summary, parameters, ref_of[row.answer])
    paths["/flows/{flow}/timeline.svg"] = {"get": _picture("When each step of a flow ran, as a file.")}
    for act in ACTS:
        paths.setdefault(act.path, {})[act.method.lower()] = _describe_act(act, ref_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "eventbus management API", "version": __version__},
        "servers": [{"url": "."}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Problem": _PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe_act(act: Act, ref_of: Mapping[type, Any]) -> dict[str, Any]:
    key = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 128}}
    described = _operation(act.summary, [*_in_path(act.path), key], ref_of[Change])
    described["requestBody"] = {
        "required": act.method != "DELETE",
        "content": {"application/json": {"schema": ref_of[act.order]}},
    }
    return described


def _describe_stream(ref_of: Mapping[type, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}
    described = _operation(
        "Five seconds of changes as server-sent events, each with a change as its data; go on with Last-Event-ID.",
        [*_in_query(TailQuery, schemas), last],
        {},
    )
    described["responses"]["200"]["content"] = {STREAM_TYPE: {"schema": ref_of[ChangeView]}}
    return described


def _operation(summary: str, parameters: list[dict[str, Any]], answer: Any) -> dict[str, Any]:
    problem = {"content": {MEDIA_TYPE: {"schema": {"$ref": _REFS.format(name="Problem")}}}}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": answer}}},
            **{str(status): {"description": title, **problem} for status, title in STATUSES.items()},
        },
    }


def _picture(summary: str) -> dict[str, Any]:
    described = _operation(summary, _in_path("/flows/{flow}/timeline.svg"), {})
    described["responses"]["200"]["content"] = {"image/svg+xml": {"schema": {"type": "string"}}}
    return described


def _in_path(path: str) -> list[dict[str, Any]]:
    how = "`!` is written `!0`, `/` is `!1`, and a dot that stands first `!2`"
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": how}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _in_query(query: type[Any], schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = cast("dict[str, Any]", schemas[query.__name__].get("properties", {}))
    return [
        {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in fields.items()
    ]
