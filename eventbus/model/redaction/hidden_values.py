"""The hidden values of one job: hidden for whoever looks at it, and looked for in texts that may quote them.

Where they are says the job's own message (`marks`), the definition of its event if this provider knows that,
and the names of fields that look like secrets. There are two kinds:

    sensitive   marked by the type (`Sensitive`): gone from each text that is recorded, also from what the
                emitter hears
    secret      has a secret name: the emitter hears it, and a recorded text has a place around it (`places`)

What must hold: the work is bounded. After so many values, characters or fields the search ends, and then the
whole text is hidden: it may quote one that was not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, cast

import msgspec

from eventbus.model.event import Event
from eventbus.model.message import HIDDEN_FIELD
from eventbus.model.redaction.forms import forms_of
from eventbus.model.redaction.marks import EACH, HIDDEN, Marks, find_marks
from eventbus.model.redaction.places import DOTS, blank, hide_whole, plain, record_places
from eventbus.model.redaction.redacting import (
    Names,
    hide,
    is_hidden,
    is_secret_name,
    may_name_secrets,
    next_nodes,
    start_nodes,
)

_PAYLOAD, _RESULT, _GUESSED = "p", "result", "*"
_LEAST = 3
"""Characters of a value that is looked for in texts; a shorter one would be found everywhere."""
_LINE = 6
"""Characters of one line of a value of several lines, which is looked for by itself."""
_MOST_VALUES, _MOST_CHARACTERS, _MOST_SEEN = 1000, 64 * 1024, 100_000
"""How much of a body is looked for in texts, and how many of its parts are looked at."""
_MOST_FORMS = 1000
"""How many forms of values are looked for that a job got from several places."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class HiddenTexts(msgspec.Struct, frozen=True, dict=True):
    """What texts about a job must not quote: forms of values, longest first.

    `has_all_sensitive` and `has_all_secret` are False if there were too many to name them all. Then a text is
    hidden as a whole.
    """

    sensitive: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    has_all_sensitive: bool = True
    has_all_secret: bool = True

    def __bool__(self) -> bool:
        """Tell whether a text could quote anything."""
        return bool(self.sensitive or self.secret) or not (self.has_all_sensitive and self.has_all_secret)

    def recorded(self, text: str) -> str:
        """Return a text as it is recorded: without sensitive values, and with places around secret ones."""
        if not text or not self:
            return text
        if not self.has_all_sensitive:
            return DOTS
        if not self.has_all_secret:
            return hide_whole(record_places(text, (), self.sensitive))
        return record_places(text, self.secret, self.sensitive)

    def shown(self, text: str) -> str:
        """Return a text that a program gets, or another system: without sensitive values alone."""
        return msgspec.structs.replace(self, secret=(), has_all_secret=True).recorded(text)

    def are_in(self, value: Any) -> bool:
        """Return whether a JSON value repeats one of them."""
        if not self:
            return False
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return any(map(self.are_in, (*fields, *fields.values())))
        if isinstance(value, (list, tuple)):
            return any(map(self.are_in, cast("list[Any]", value)))
        return self.is_number(value) if not isinstance(value, str) else self.recorded(value) != value

    def is_number(self, value: Any) -> bool:
        """Return whether it is a number that is one of them."""
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not self:
            return False
        return str(value) in self._forms or not (self.has_all_sensitive and self.has_all_secret)

    @cached_property
    def _forms(self) -> frozenset[str]:
        return frozenset((*self.sensitive, *self.secret))

    def joined(self, others: Iterable[HiddenTexts]) -> HiddenTexts:
        """Return what these and those must not quote, together."""
        every = [each for each in (self, *others) if each]
        if len(every) <= 1:
            return every[0] if every else self
        sensitive = {form for each in every for form in each.sensitive}
        secret = {form for each in every for form in each.secret}
        return HiddenTexts(
            _longest_first(sensitive) if len(sensitive) <= _MOST_FORMS else (),
            _longest_first(secret) if len(secret) <= _MOST_FORMS else (),
            len(sensitive) <= _MOST_FORMS and all(each.has_all_sensitive for each in every),
            len(secret) <= _MOST_FORMS and all(each.has_all_secret for each in every),
        )

    def with_secret(self, forms: Iterable[str]) -> HiddenTexts:
        """Return what these must not quote, and besides them these forms of secret values."""
        found = {form for form in forms if len(form) >= _LEAST} - set(self.secret)
        if not found:
            return self
        return msgspec.structs.replace(self, secret=_longest_first({*self.secret, *found}))


NOTHING_HIDDEN = HiddenTexts()


def mark_guessed(marks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marks of a body that somebody has edited who may not see its hidden values.

    From then on all texts of the job are hidden as a whole: otherwise the editor could write guesses beside a
    hidden value, and would see which of them is blanked where a text quotes them.
    """
    return {**marks, _GUESSED: [{}]}


class HiddenValues:
    """Hides what is hidden in the body of a job, its result, and what quotes them."""

    def __init__(
        self,
        body: str,
        event: Event[Any, Any] | None = None,
        *,
        job_id: str = "",
        names: Names | None = None,
        reveals: bool = False,
    ) -> None:
        """`event` is that of the job, if it is known. With `names`, values are hidden by the names of their
        fields, too; `reveals`: nothing is hidden at all.
        """
        self._body = "" if reveals else body
        self._event = event
        self._job_id = job_id
        self._names = names
        self._reveals = reveals

    @cached_property
    def _given(self) -> dict[str, Any]:
        try:
            return _decode(self._body) if self._body else {}
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return {}

    @cached_property
    def _marks(self) -> dict[str, list[Marks]]:
        found: dict[str, list[Marks]] = {}
        if f'"{HIDDEN_FIELD}":' in self._body:
            found = {name: [marks] for name, marks in _read(self._given.get(HIDDEN_FIELD)).items()}
        if self._event is not None and not self._reveals:
            for name, type_ in ((_PAYLOAD, self._event.payload), (_RESULT, self._event.result)):
                if name not in found and (known := find_marks(type_)) is not None:
                    found[name] = [known]
        return found

    @cached_property
    def texts(self) -> HiddenTexts:
        """What texts must not quote: sensitive values, and those that have a secret name by `names`."""
        names = self._names
        if names is is_secret_name and not may_name_secrets(self._body):
            names = None
        if names is None and not self._marks:
            return NOTHING_HIDDEN
        found = find_texts(self._given, self._marks, names)
        return msgspec.structs.replace(found, has_all_secret=False) if _GUESSED in self._marks else found

    @property
    def may_hide(self) -> bool:
        """Whether anything of the job is hidden: by marks, or by a name."""
        return bool(self._marks) or bool(self.texts)

    def in_payload(self, payload: Any) -> Any:
        """Return the payload of an event without what is hidden."""
        return self._hide(_PAYLOAD, payload)

    def in_result(self, result: Any) -> Any:
        """Return the result without what is hidden, also where it repeats the payload."""
        return self.in_texts(self._hide(_RESULT, result))

    def in_body(self, body: Any) -> Any:
        """Return the body of another job without what is hidden, and without the marks."""
        if not isinstance(body, dict) or not (self._marks or self._names):
            return cast("Any", body)
        fields = cast("dict[str, Any]", body)
        hides = self._names or _no_name
        return {
            name: self._hide(name, value, is_secret=hides(name))
            for name, value in fields.items()
            if name != HIDDEN_FIELD
        }

    def in_field(self, name: str, value: Any) -> Any:
        """Return what belongs to a job, such as the state of a flow, without what is sensitive by its
        marks or repeats that.
        """
        return self.in_texts(self._hide(name, value))

    def in_text(self, text: str) -> str:
        """Return a text, such as that of an error, without what it quotes of hidden values."""
        return plain(text) if self._reveals else blank(self.texts.recorded(text) if text else text)

    def in_texts(self, value: Any) -> Any:
        """Return a JSON value, such as progress, with each of its texts as `in_text` returns it, and by
        names.
        """
        if self._reveals:
            return value
        return self._copy(hide(value, None, names=self._names, where=self._job_id))

    def _copy(self, value: Any) -> Any:
        if isinstance(value, str):
            return value if is_hidden(value) else self.in_text(value)
        if isinstance(value, dict):
            return {name: self._copy(part) for name, part in cast("dict[str, Any]", value).items()}
        if isinstance(value, (list, tuple)):
            return [self._copy(part) for part in cast("list[Any]", value)]
        return DOTS if self.texts.is_number(value) else value

    def _hide(self, name: str, value: Any, *, is_secret: bool = False) -> Any:
        where = f"{self._job_id}/{name}"
        names = _every_name if is_secret else self._names
        for marks in self._marks.get(name, ()):
            value = hide(value, marks, where=where)
        return hide(value, None, names=names, where=where)


def find_texts(
    given: Mapping[str, Any], marks: Mapping[str, list[Marks]], names: Names | None = is_secret_name
) -> HiddenTexts:
    """Return the forms in which texts quote what is hidden in the fields of a body."""
    search = _Search(names)
    for name, value in given.items():
        if name != HIDDEN_FIELD:
            search.look_at(name, value, marks.get(name, ()))
    return search.result()


class _Search:
    """The search for hidden values in a body, until it has seen too much."""

    def __init__(self, names: Names | None) -> None:
        self._names = names
        self._known: dict[str, bool] = {}
        self._sensitive: set[str] = set()
        self._secret: set[str] = set()
        self._left = _MOST_CHARACTERS
        self._seen = 0
        self._has_all = [True, True]

    def look_at(self, field: str, value: Any, marks: Iterable[Marks]) -> None:
        """Note the hidden values of one field of a body."""
        for each in marks:
            self._walk(value, each, start_nodes(each), self._sensitive, 0)
        if self._names is not None:
            self._walk(value, None, {HIDDEN} if self._is_secret(field) else set(), self._secret, 1)

    def result(self) -> HiddenTexts:
        return HiddenTexts(_forms(self._sensitive), _forms(self._secret - self._sensitive), *self._has_all)

    def _walk(self, value: Any, marks: Marks | None, nodes: set[int], found: set[str], kind: int) -> None:
        ahead: list[tuple[Any, set[int]]] = [(value, nodes)]
        while ahead:
            part, nodes = ahead.pop()
            self._seen += 1
            if self._seen > _MOST_SEEN or len(found) > _MOST_VALUES or self._left < 0:
                self._has_all[kind] = False
                return
            is_hidden = HIDDEN in nodes
            if isinstance(part, dict):
                for name, inner in cast("dict[str, Any]", part).items():
                    ahead.append((inner, nodes if is_hidden else self._follow(marks, nodes, name)))
            elif isinstance(part, list):
                following = nodes if is_hidden or marks is None else next_nodes(marks, nodes, EACH)
                if following or marks is None:
                    ahead += [(inner, following) for inner in cast("list[Any]", part)]
            elif is_hidden and part is not None and not isinstance(part, bool):
                text = plain(str(part))  # texts that are searched have no marks either
                if len(text) >= _LEAST:
                    found.add(text)
                    self._left -= len(text)

    def _follow(self, marks: Marks | None, nodes: set[int], name: str) -> set[int]:
        if marks is not None:
            return next_nodes(marks, nodes, name)
        return {HIDDEN} if self._is_secret(name) else nodes

    def _is_secret(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = bool(self._names and self._names(name))
        return known


def _forms(values: set[str]) -> tuple[str, ...]:
    found = {form for value in values for form in forms_of(value) if len(form) >= _LEAST}
    # The traceback of a group indents each line of what it quotes.
    return _longest_first(
        found | {line for form in found for line in form.splitlines() if len(line) >= _LINE}
    )


def _longest_first(forms: set[str]) -> tuple[str, ...]:
    return tuple(sorted(forms, key=len, reverse=True))


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


def _every_name(_: str) -> bool:
    return True


def _no_name(_: str) -> bool:
    return False
