"""The description of the API, OpenAPI 3.1, made from its table and from the structs that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from eventbus._version import __version__
from eventbus.dashboard.api.stream import MEDIA_TYPE as STREAM_TYPE
from eventbus.dashboard.api.table import ACTS, READS
from eventbus.dashboard.desk.desk import ActionResult
from eventbus.dashboard.desk.edits import EditOrder
from eventbus.dashboard.desk.events.emissions import EmitOrder
from eventbus.dashboard.desk.repeats import LONGEST_KEY
from eventbus.dashboard.desk.rows import Act
from eventbus.dashboard.desk.tail import ChangeView, TailQuery
from eventbus.dashboard.problem import MEDIA_TYPE, STATUSES

_REFS = "#/components/schemas/{name}"
_READ_STATUSES = {status: title for status, title in STATUSES.items() if status not in (412, 415)}
"""Without those of a body, and of a state that somebody has seen."""
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
    kinds = {each.answer for each in READS} | {each.order for each in ACTS} | {ActionResult}
    kinds |= {ChangeView}
    queries = {TailQuery, *(each.query for each in READS)}
    found = sorted(kinds | queries, key=lambda kind: kind.__name__)
    refs, schemas = msgspec.json.schema_components(found, ref_template=_REFS)
    ref_of = dict(zip(found, refs, strict=True))
    for act in ACTS:  # `to_order` refuses what an order does not have
        schemas[act.order.__name__]["additionalProperties"] = False
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
    parameters = [*_in_path(act.path), *_beside_body(act)]
    described = _operation(act.summary, parameters, ref_of[ActionResult], STATUSES)
    described["requestBody"] = {
        "required": act.method != "DELETE",
        "content": {"application/json": {"schema": ref_of[act.order]}},
    }
    return described


def _beside_body(act: Act) -> list[dict[str, Any]]:
    """Return what an action takes in its head or its query."""
    text, found = {"type": "string"}, list[dict[str, Any]]()
    if act.is_kept:
        found.append(
            {"name": "Idempotency-Key", "in": "header", "schema": {**text, "maxLength": LONGEST_KEY}}
        )
    if act.order is EditOrder:
        found.append({"name": "If-Match", "in": "header", "schema": text})
    if act.order is EmitOrder:
        found.append({"name": "wait", "in": "query", "schema": text, "allowEmptyValue": True})
    return found


def _describe_stream(ref_of: Mapping[type, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    behind = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}
    described = _operation(
        "Five seconds of changes as server-sent events, each with a change as its data; "
        "go on with Last-Event-ID.",
        [*_in_query(TailQuery, schemas), behind],
        {},
    )
    last: dict[str, Any] = {
        "type": "object",
        "properties": {"since": {"type": "string"}},
        "required": ["since"],
    }
    data = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [ref_of[ChangeView], last]}}
    event: dict[str, Any] = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "event": {"enum": ["change", "slice"]},
            "data": {"type": "string", **data},
        },
        "required": ["id", "event", "data"],
    }
    described["responses"]["200"]["content"] = {STREAM_TYPE: {"schema": event}}
    return described


def _operation(
    summary: str, parameters: list[dict[str, Any]], answer: Any, statuses: Mapping[int, str] = _READ_STATUSES
) -> dict[str, Any]:
    problem = {"content": {MEDIA_TYPE: {"schema": {"$ref": _REFS.format(name="Problem")}}}}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": answer}}},
            **{str(status): {"description": title, **problem} for status, title in statuses.items()},
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
    """Return the fields of a query. One that is empty counts as left out, because forms send all of
    theirs.
    """
    fields = cast("dict[str, Any]", schemas[query.__name__].get("properties", {}))
    return [
        {"name": name, "in": "query", "required": False, "schema": schema, "allowEmptyValue": True}
        for name, schema in fields.items()
    ]
