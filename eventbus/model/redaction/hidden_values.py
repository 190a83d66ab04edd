"""The sensitive values of one job, hidden for whoever looks at it.

Where they are says the job's own message, and the definition of its event if this provider knows that.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from eventbus.model.event import Event
from eventbus.model.message import HIDDEN_FIELD
from eventbus.model.redaction.marks import Marks, find_marks
from eventbus.model.redaction.redacting import forms_in, hide, hide_at_cuts, sensitive_forms, shown_instead

__all__ = ["HiddenValues"]

_PAYLOAD, _RESULT = "p", "result"

_decode_marks = msgspec.json.Decoder(dict[str, Any]).decode


class HiddenValues:
    """Hides what is sensitive in the body of a job, its result and its errors."""

    def __init__(self, body: str, event: Event[Any, Any] | None = None) -> None:
        """`event` is that of the job, if it is known."""
        try:
            given: Any = _decode_marks(body)
        except (msgspec.MsgspecError, UnicodeError):
            given = {}
        self._marks: dict[str, list[Marks]] = {}
        for name, marks in _read(given.get(HIDDEN_FIELD)).items():
            self._marks[name] = [marks]
        if event is not None:
            for name, type_ in ((_PAYLOAD, event.payload), (_RESULT, event.result)):
                if name not in self._marks and (known := find_marks(type_)) is not None:
                    self._marks[name] = [known]
        self._forms: dict[str, str] = {}
        for name, found in self._marks.items():
            for marks in found:
                self._forms |= sensitive_forms(given.get(name), marks)
        self.texts: list[str] = sorted(self._forms, key=len, reverse=True)

    def in_payload(self, payload: Any) -> Any:
        """Return the payload of an event without what is sensitive."""
        return self._hide(_PAYLOAD, payload)

    def in_result(self, result: Any) -> Any:
        """Return the result without what is sensitive."""
        return self._hide(_RESULT, result)

    def in_body(self, body: Any) -> Any:
        """Return the body of another job without what is sensitive, and without the marks."""
        if not (isinstance(body, dict) and self._marks):
            return cast("Any", body)
        fields = cast("dict[str, Any]", body)
        return {name: self._hide(name, value) for name, value in fields.items() if name != HIDDEN_FIELD}

    def in_field(self, name: str, value: Any) -> Any:
        """Return what belongs to a job, such as the state of a flow, without what is sensitive by its
        marks or repeats that.
        """
        return self.in_texts(self._hide(name, value))

    def in_text(self, text: str) -> str:
        """Return a text, such as that of an error, without the sensitive values: each as it is shown in the payload."""
        for form in forms_in(text, self.texts):
            text = text.replace(form, shown_instead(self._forms[form]))
        return hide_at_cuts(text, self.texts)

    def in_texts(self, value: Any) -> Any:
        """Return a JSON value, such as progress, with each of its texts as `in_text` returns it."""
        if not self.texts:
            return value
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {name: self.in_texts(part) for name, part in fields.items()}
        if isinstance(value, list):
            return [self.in_texts(part) for part in cast("list[Any]", value)]
        return value

    def _hide(self, name: str, value: Any) -> Any:
        for marks in self._marks.get(name, ()):
            value = hide(value, marks)
        return value


def _read(given: Any) -> dict[str, Marks]:
    """Return the marks of a body by field. Marks of another form hide the whole field."""
    if not isinstance(given, dict):
        return {}
    found: dict[str, Marks] = {}
    for name, marks in cast("dict[str, Any]", given).items():
        try:
            found[name] = msgspec.convert(marks, Marks)
        except msgspec.ValidationError:
            found[name] = [{}]
    return found
