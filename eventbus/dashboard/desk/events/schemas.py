"""Schemas: how the payload of an event looks, as JSON schema, and as the fields of a form.

What must always hold: a form only collects a payload; whether it fits says the codec of the event, for all
who emit.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from eventbus.model.type_matching import is_untyped

_KINDS: dict[str, Literal["text", "integer", "number", "flag"]] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "flag",
}
_MOST = 40


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a flat payload. `choices` are the JSON texts of its values, where these are listed."""

    name: str
    kind: Literal["text", "integer", "number", "flag", "choice"]
    is_needed: bool
    default: str = ""
    choices: list[str] = []
    told: str = ""


def schema_of(type_: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a type, None if there is none or it says nothing."""
    if is_untyped(type_):
        return None
    try:
        return msgspec.json.schema(type_)
    except (TypeError, NotImplementedError, msgspec.MsgspecError):
        pass
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415  (optional; a program with models has the package)

        return TypeAdapter(type_).json_schema()
    except Exception:  # noqa: BLE001  (a type of somebody else; a form of JSON is enough then)
        return None


def fields_of(schema: dict[str, Any] | None) -> list[FormField] | None:
    """Return the fields of a flat object, None for any other schema."""
    if schema is None:
        return None
    root = _resolved(schema, schema)
    properties = cast("dict[str, Any]", root.get("properties") or {})
    if root.get("type") != "object" or not 0 < len(properties) <= _MOST or "anyOf" in root:
        return None
    needed = cast("list[str]", root.get("required", []))
    found = [_field(schema, name, given, is_needed=name in needed) for name, given in properties.items()]
    return None if None in found else cast("list[FormField]", found)


def payload_of(fields: list[FormField], form: dict[str, str]) -> dict[str, Any]:
    """Take the payload out of a form, and return it; what is no number stays text.

    So that the codec names the field.
    """
    payload: dict[str, Any] = {}
    for field in fields:
        text = form.pop(f"f.{field.name}", "")
        if field.kind == "flag":
            payload[field.name] = text == "true"
        elif text:
            payload[field.name] = _value(field, text)
        elif field.is_needed and field.kind == "text":
            payload[field.name] = ""
    return payload


def _value(field: FormField, text: str) -> Any:
    if field.kind == "text" or (field.kind == "choice" and text not in field.choices):
        return text
    try:
        found: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return found if field.kind == "choice" or isinstance(found, (int, float)) else text


def _field(schema: dict[str, Any], name: str, given: Any, *, is_needed: bool) -> FormField | None:
    """Return a field of a flat type; None for any other one."""
    found = _resolved(schema, given)
    default = found.get("default", given.get("default"))
    if "anyOf" in found:
        kinds = [_resolved(schema, each) for each in found["anyOf"]]
        kinds = [each for each in kinds if each.get("type") != "null"]
        if len(kinds) != 1:
            return None
        found, is_needed = {**found, **kinds[0]}, False
    told = str(found.get("description", ""))
    shown = (
        default
        if isinstance(default, str)
        else ""
        if default is None
        else msgspec.json.encode(default).decode()
    )
    if "enum" in found:
        choices = [msgspec.json.encode(each).decode() for each in found["enum"]]
        picked = "" if default is None else msgspec.json.encode(default).decode()
        return FormField(
            name=name, kind="choice", is_needed=is_needed, default=picked, choices=choices, told=told
        )
    kind = _KINDS.get(str(found.get("type")))
    if kind is None:
        return None
    return FormField(name=name, kind=kind, is_needed=is_needed, default=shown, told=told)


def _resolved(schema: dict[str, Any], given: Any) -> dict[str, Any]:
    """Return what a reference of the schema stands for."""
    found = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    for _ in range(8):
        if "$ref" not in found:
            return found
        name = str(found["$ref"]).rpartition("/")[2]
        found = schema.get("$defs", {}).get(name, {})
    return {}
