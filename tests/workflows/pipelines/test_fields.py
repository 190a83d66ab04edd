"""The fields of pipelines: what counts as changed, and which types certainly do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import DefinitionError
from workflows.pipelines.fields import Field, check_has
from workflows.pipelines.merging import changed_fields, lay_changes


def test_a_field_that_is_set_to_none_or_taken_away_has_changed() -> None:
    assert changed_fields({}, {"a": None}) == {"a"}
    assert changed_fields({"a": None}, {}) == {"a"}
    assert changed_fields({"a": None}, {"a": None}) == set()
    assert lay_changes({}, {"a": None}, {"b": 1}) == {"a": None, "b": 1}
    assert lay_changes({"a": None}, {}, {"a": None, "b": 1}) == {"b": 1}


@pytest.mark.parametrize(
    ("given", "wanted", "fits"),
    [
        (int, int, True),
        (int, float, True),
        (float, int, False),
        (str, int, False),
        (int, str, False),
        (bool, int, False),
        (bool, float, False),
        (int, bool, False),
        (str, bytes, False),
        (Any, int, True),
        (int, Any, True),
        (list[int], int, True),
        (int, list[int], True),
    ],
)
def test_a_pipeline_is_refused_only_if_a_plain_type_certainly_does_not_fit(
    given: Any, wanted: Any, fits: bool
) -> None:
    known, takes = {"a": Field(given, True, "step 'one'")}, {"a": Field(wanted, True)}
    if fits:
        check_has(known, takes, "step 'two'")
    else:
        with pytest.raises(DefinitionError, match="takes the field 'a' as"):
            check_has(known, takes, "step 'two'")
