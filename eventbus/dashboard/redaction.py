"""Redaction: which values of payloads, results and errors are shown.

A value whose name looks like a secret is replaced by dots and eight hexadecimal digits. The digits come from a key of this
process, so equal values can be matched and none can be guessed. The same values are replaced where they stand in texts of
errors. Fields that are marked as Sensitive come hidden from the inspector; here only texts are searched for their values. What must always hold: whatever leaves by a page or by the API has passed here; only `payload.reveal` goes around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec

from eventbus.model.redaction.forms import forms_of
from eventbus.model.redaction.redacting import forms_in, hide_at_cuts, shown_instead

__all__ = ["Redact", "Redaction"]

Redact: TypeAlias = "Literal['patterns', 'all', 'none'] | Callable[[str, str], bool]"
"""`patterns` hides values by their names, `all` hides every value and keeps names and types, `none` hides nothing.

A function gets the name of the event and that of the field, and returns whether its value is hidden, beside those that the
patterns hide.
"""

_NAMES = re.compile(
    r"pass|secret|token|card|iban|authori[sz]ation|credential|api[-_ ]?key|cvv|cvc|ssn", re.IGNORECASE
)
_DEEPEST = 200
_LEAST = 4  # characters of a value that is looked for in texts; a shorter one stands in any text


class Redaction:
    """Hides the values of one report."""

    def __init__(self, redact: Redact, event: str) -> None:
        self._redact = redact
        self._event = event
        self._hidden: set[str] = set()
        self._forms: dict[str, str] = {}
        self._known = 0

    def value(self, given: Any) -> Any:
        """Return a value of JSON without what is not to be seen."""
        return self._copy(given, "", is_hidden=self._redact == "all", depth=0)

    def learn(self, shown: Any, revealed: Any) -> None:
        """Hide in texts what is hidden in `shown` already, because its type marks it: `revealed` is the same value in full."""
        if isinstance(shown, Mapping) and isinstance(revealed, Mapping):
            fields = cast("Mapping[Any, Any]", revealed)
            for name, value in cast("Mapping[Any, Any]", shown).items():
                self.learn(value, fields.get(name))
        elif isinstance(shown, list) and isinstance(revealed, list):
            pairs = zip(cast("list[Any]", shown), cast("list[Any]", revealed), strict=False)
            for part, whole in pairs:
                self.learn(part, whole)
        elif shown != revealed and revealed is not None:
            self._hide(revealed)

    def text(self, given: str) -> str:
        """Return a text without the values that `value` has hidden, also without the parts of them at a cut."""
        known = self._find_forms()
        forms = list(known)
        for form in forms_in(given, forms):
            given = given.replace(form, shown_instead(known[form]))
        return hide_at_cuts(given, forms)

    def texts(self, given: Any) -> Any:
        """Return a report, made of dicts, lists and texts, as `text` does each of its texts."""
        if isinstance(given, str):
            return self.text(given)
        if isinstance(given, dict):
            return {name: self.texts(value) for name, value in cast("dict[str, Any]", given).items()}
        if isinstance(given, (list, tuple)):
            return [self.texts(value) for value in cast("list[Any]", given)]
        return given

    def _find_forms(self) -> dict[str, str]:
        """Return the forms in which texts quote what is hidden, each with its value, the longest values first.

        They are made once: a payload may hide thousands of values, and a report has dozens of texts.
        """
        if self._known != len(self._hidden):
            self._known, self._forms = len(self._hidden), {}
            for value in sorted(self._hidden, key=len, reverse=True):
                for form in sorted(forms_of(value), key=len, reverse=True):
                    if len(form) >= _LEAST:
                        self._forms.setdefault(form, value)
        return self._forms

    def _copy(self, given: Any, name: str, *, is_hidden: bool, depth: int) -> Any:
        if depth > _DEEPEST:
            return "…"
        is_hidden = is_hidden or self._is_secret(name)
        if isinstance(given, Mapping):
            fields = cast("Mapping[Any, Any]", given)
            return {
                str(key): self._copy(value, str(key), is_hidden=is_hidden, depth=depth + 1)
                for key, value in fields.items()
            }
        if isinstance(given, (list, tuple)):
            return [
                self._copy(value, name, is_hidden=is_hidden, depth=depth + 1)
                for value in cast("list[Any]", given)
            ]
        return self._hide(given) if is_hidden and given is not None else given

    def _is_secret(self, name: str) -> bool:
        if self._redact == "none" or not name:
            return False
        if callable(self._redact) and self._redact(self._event, name):
            return True
        return _NAMES.search(name) is not None

    def _hide(self, value: Any) -> str:
        text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
        if len(text) >= _LEAST:
            self._hidden.add(text)
        return (
            f"{shown_instead(text)}"
            if self._redact != "all"
            else f"{shown_instead(text)} {type(value).__name__}"
        )
